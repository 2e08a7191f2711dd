"""Mathematics of a boundary between two stages.

psi: the penalty ψ(λ, X) and its gradient. beta: its weight β over time. kappa: the network of the multiplier κ.
stores: λ or κ by sample. heads: local losses (`dgl`). reconstruction: what they add against lost information.
published: the paper's own settings.

psi, beta, kappa, stores, reconstruction and published import only core; heads also the worker of `runtime.engine`.
"""
