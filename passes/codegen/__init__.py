"""Readable Python source for a stage or an AuxNet; `source.stage_source` is the entry.

Text: the room `text` (identifiers, constants, line breaks).
Structure: `tree` (modules of a stage, steps of a graph), `leaf` and `torch_layers` (one layer as an expression).
Methods: `calls` (one step, with Python's `operators`), `items` (the steps of a unit), `variables` (names), `forward` (a
method), `loops`, `modes`.
Classes: `units` (containers with a method of their own), `init` (constructors), `classes`, `source` (the file).

Imports errors, core and passes.graph.
"""
