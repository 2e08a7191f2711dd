"""Python source as text: `names` (identifiers and quoting), `values` (constants and imports), `format` (line breaks).

Imports errors, core and passes.graph; nothing else of `codegen`.
"""
