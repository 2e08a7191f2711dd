"""`lpcompile bench`: the step time of every method beside plain training, DDP, FSDP and torch's pipelines.

Reading order: request (options), the room contenders (one rank of each way to train, and its work), rank (its
process), team (all its processes), plans, runner (turns in blocks), run (the whole bench), links (over links of a given
rate), to_accuracy (the time to a test accuracy), quiet (other programs on the machine), arithmetic (from clocks to
figures), results, then table, page and gate.

Imports core, passes, runtime, planning, the front door, training, sources, simulate and draw.
"""
