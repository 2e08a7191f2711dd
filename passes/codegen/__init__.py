"""Readable Python source for a stage or an AuxNet; `source.stage_source` is the entry.

Text: `names` (identifiers and quoting), `values` (constants and imports), `format` (line breaks).
Structure: `tree` (modules of a stage, steps of a graph), `leaf` and `torch_layers` (one layer as an expression).
Methods: `calls` (one step), `items` (the steps of a unit), `variables` (names), `forward` (a method), `loops`, `modes`.
Classes: `units` (containers with a method of their own), `init` (constructors), `classes`, `source` (the file).

Imports errors, core and passes.graph.
"""
