"""From costs to a Plan: AuxNets and heads of a chosen split, their size, and the options of `parallelize`.

Imports core, passes and runtime; never a tool (bench, compare, report, cli, ...).
"""
