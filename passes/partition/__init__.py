"""The best contiguous split of units into K stages, with a proof of how good it is.

`evaluate` has the equations of the step time, `partition` minimises them, `search` and `bound` are the algorithm,
`options` checks what a user fixes. A method enters as its traits (`core.method.Method`), never by its name.

May import core; of passes nothing.
"""
