"""What a user may do about a run that is not well, by the method in use."""

from __future__ import annotations

from lpcompile.core.method import Method


def advice(method: Method, trouble: str) -> str:
    """Remedies, the likeliest first. trouble: "constant" (λ or X does not vary), "far" (λ does not follow X), "starved"
    (a stage gets no gradient), or "chance" (the model does not learn)."""
    if method.exact:
        return "lower the learning rate, or train longer: these are plain training's own gradients"
    if not method.aux:
        late = f", make the first steps exact (method='1f1b@0.3,{method.name}')" if method.delayed else ""
        return f"lower the learning rate{late}, or compare with method='1f1b', which is plain training"
    found = []
    if trouble == "constant" and method.beta == "rising":
        found += ["let β start smaller (beta={0: 0.1, ...})", "weaken the pull on λ (lam_weight=0.5)"]
    if trouble == "starved":
        found += ["a larger β (beta=10.0)"] if method.beta == "rising" else []
        found += ["method='multiplier', which passes the loss's own gradient down"] if method.beta == "rising" else []
    elif method.aux == "auxnet":
        found += ["larger AuxNets (aux_budget=0.2)", "a faster optimizer for them (aux_optimizer=...)"]
        found += ["a lower learning rate"] if trouble != "far" else []
    found.append("method='auto', an exact pipeline without AuxNets")
    return f"try {', '.join(found[:-1])}{' or ' if found[:-1] else ''}{found[-1]}"
