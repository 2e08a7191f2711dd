"""The simulator: plays the schedules that the runtime executes on measured or nominal devices.

Costs and network: `device_spec`, `interconnect`, `op_costs`. One step: `player`, `step`, `critical_path`. Questions
about plans: `outlook` (other boundaries, K and methods), `whole_run` (a recipe), `scaling` (many devices),
`regions` (the fastest way over K, batch and links), `paper_table` (the paper's speedups), `check` and `calibrate` (this
machine). `outlook_text`, `scaling_text` and `step_text` give them as text and JSON.

Imports core, passes, runtime, planning, the front door (compile), sources and draw; never report or cli.
"""
