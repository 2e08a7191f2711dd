"""AuxNets and heads: small networks derived from a stage's own graph. May import passes and core.

`derive` makes one AuxNet: `choice` decides which residual blocks (`drop_blocks`), channels (`channels`) and ranks
(`low_rank`) to keep within a budget, `layers` copies the layers that are left, `adapter` replaces a stage without
blocks, `check` runs the result on fake tensors. `head` derives heads, `recursive` chains AuxNets, `user` wraps the
user's own, `smaller` cuts them from a smaller model. `zeroing` finds the parameters of a consistent start; `measure`
calibrates budgets by measured time.
"""
