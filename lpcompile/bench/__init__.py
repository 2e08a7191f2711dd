"""`lpcompile bench`: the step time of every method beside plain training, DDP, FSDP and torch's pipelines.

Reading order: request (options), work (model, data and loss of all), contender, contenders and torch_pipeline
(one rank of each way to train), rank (its process), team (all its processes), plans, run (turns in blocks), arithmetic
(from clocks to figures), results, then table, page and gate.

Imports core, passes, runtime, planning, the front door, training, sources, simulate and draw.
"""
