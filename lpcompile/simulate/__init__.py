"""The simulator: plays the schedules that the runtime executes on measured or nominal devices.

Costs and network: `device_spec`, `interconnect`, `op_costs`. One step: `player`, `step`, `rank_memory`,
`critical_path`. Questions about plans: `outlook` (other boundaries, K and methods), `scaling` (many devices),
`paper_table` (the paper's speedups), `check` and `calibrate` (this machine). `X_text` is X as text and JSON.

Imports core, passes, runtime, planning, the front door (compile), sources and draw; never report or cli.
"""
