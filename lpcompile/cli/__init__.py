"""The command line: one module a command.

Imports every room, at the latest moment, so that `--help` is fast. Nothing imports cli.
"""
