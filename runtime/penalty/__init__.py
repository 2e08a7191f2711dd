"""Mathematics of a boundary between two stages.

psi: the penalty ψ(λ, X) and its gradient. beta: its weight β over time. kappa: the network of the multiplier κ.
stores: λ or κ by sample. heads: local losses (`dgl`). published: the paper's own settings.

psi, beta, kappa, stores and published import only core; heads also the worker of `runtime.engine`.
"""
