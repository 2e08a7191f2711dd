"""The cost of every unit, for the planner. May import passes and core.

`profile` is the entry and holds the cache; `flops` counts, `measure` times real steps with as many `samples` as are
affordable, `micro_time` times micro-batches of several sizes, `split_backward_cost` backwards in two parts,
`compiled_units` makes units by torch.compile.
"""
