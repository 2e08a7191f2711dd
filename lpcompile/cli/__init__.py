"""The command line: one module a command, each with `add_arguments(parser)` and `run(arguments)`.

`main` builds the parser and dispatches; `flags` declares what commands have in common, once; `model` builds the program
for `inspect` and `emit`; `outlook` and `report` are parts of `inspect`; `files` checks what will be written.
Imports every room, inside functions where that would import torch, so that `--help` is fast. Nothing imports cli.
"""
