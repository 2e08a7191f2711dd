"""What acts at a boundary: the penalty ψ, its weight β, multipliers κ, stored λ, local heads, the collapse check."""
