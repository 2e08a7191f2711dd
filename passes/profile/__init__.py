"""The cost of every unit, for the planner. May import passes and core.

`profile` is the entry and holds the cache; `flops` counts, `measure` times real steps with as many `samples` as are
affordable, `split_backward_cost` times backwards in two parts.
"""
