"""The health of a run: what goes wrong while it trains is found, mended where possible, and said.

coupling: exact steps in place of a decoupled method while λ is far from X. check: is the model itself learning?
collapse: do boundaries still vary over samples? verdict: has the model learnt more than chance at the end? advice: what
a user may do.

Imports core, errors and the other rooms of the runtime.
"""
