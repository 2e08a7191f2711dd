"""`lpcompile bench`: the step time of every method beside plain training, DDP, FSDP and torch's pipelines.

Imports every room but cli.
"""
