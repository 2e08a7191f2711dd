"""The command line: one module per command, each with `add_arguments(parser)` and `run(arguments)`: bench, checkpoint,
compare, emit, export, inspect, paper, simulate, study, train and zoo.

`main` builds the parser and dispatches; `flags` declares what commands have in common, once; the room `parts` has the
parts that commands are made of.
Imports every room, inside functions where that would import torch, so that `--help` is fast. Nothing imports cli.
"""
