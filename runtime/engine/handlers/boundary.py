"""Instructions at a boundary: λ, the penalty ψ, the multiplier κ, and what AuxNets and stores learn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lpcompile.core.method import Terms
from lpcompile.core.schedule import Instruction
from lpcompile.runtime.engine import versions
from lpcompile.runtime.engine.handlers.end_of_step import stash_tied
from lpcompile.runtime.engine.worker import Worker
from lpcompile.runtime.health import collapse
from lpcompile.runtime.health.advice import advice
from lpcompile.runtime.penalty import psi
from lpcompile.runtime.penalty.kappa import rows
from lpcompile.runtime.penalty.stores import Store


def aux_forward(w: Worker, item: Instruction, slot: int) -> None:
    """λ_k = AuxNet_{k-1}(λ_{k-1}). A schedule that writes "aux" keeps the graph, with the version of its weights."""
    k = item.boundary
    keep = any(ref.kind == "aux" for ref in item.writes)
    with torch.set_grad_enabled(keep):
        made = w.run_aux(k, slot)
    if keep:
        w.values["aux", k, slot] = (made, versions.now(w.aux_trained[k]))
    w.values["lam", k, slot] = with_noise(w, k, tuple(t.detach() for t in made))


def with_noise(w: Worker, k: int, lams: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Gaussian noise on λ, in proportion to its size."""
    if not w.settings.noise:
        return lams
    sizes = [t.square().mean().sqrt() for t in w.pick(k, lams)]
    noisy = [
        torch.addcmul(t, torch.randn_like(t), w.settings.noise * s) for t, s in zip(w.pick(k, lams), sizes, strict=True)
    ]
    return tuple(noisy.pop(0) if i in w.differentiable[k] else t for i, t in enumerate(lams))


def recall(w: Worker, item: Instruction, slot: int) -> None:
    """λ of this micro-batch's samples from the store."""
    k = item.boundary
    w.values["lam", k, slot] = with_noise(w, k, w.stores["lam", k].take(index_of(w, slot)))


def penalize(w: Worker, item: Instruction, slot: int) -> None:
    """d = β ∂ψ(λ_k, X_k)/∂λ_k, times the micro-batch's weight; and the violation."""
    k = item.boundary
    lams, Xs = w.pick(k, w.values["lam", k, slot]), w.pick(k, w.values["X", k, slot])
    batch = w.batches[slot]
    weight = w.beta(k, slot) * w.weight(slot)
    found = [psi.gradient(w.settings.psi, lam, X, weight) for lam, X in zip(lams, Xs, strict=True)]
    w.values["d", k, slot] = tuple(d for d, _ in found)
    for _, violation in found:
        w.note(f"violation {k}", violation, batch.weight)
    if w.betas[k].rule.kind == "adaptive" and found:
        w.betas[k].saw(sum(float(v) for _, v in found) / len(found))
    if w.betas[k].rule.kind == "relative":
        w.sizes[k, slot] = [X.norm() for X in Xs]
    if w.look:
        note_collapse(w, k, collapse.check(w.varied, w.rank, k, w.step, {"λ": lams, "X": Xs}))


def note_collapse(w: Worker, k: int, said: str) -> None:
    """Remember that values of boundary k no longer vary, for the ranks to re-couple; or, without that, fail."""
    if not said:
        w.collapsed.pop(k, None)
    elif w.method.aux == "auxnet" and w.settings.recouple:
        w.collapsed[k] = said
    else:
        collapse.fail(w.settings.collapse, said, advice(w.method, "constant"))


def terms(w: Worker, item: Instruction, k: int, slot: int) -> Terms:
    read = {ref.kind for ref in item.reads if ref.boundary == k}
    d, p, kappa = (w.values[kind, k, slot] if kind in read else () for kind in ("d", "p", "kappa"))
    return Terms(d, p, kappa, w.settings.lam_weight)


def feel(w: Worker, k: int, slot: int, given: Terms) -> None:
    """Update a relative β by |p||X|. Both ranks of boundary k see the same micro-batches in the same order."""
    sizes = w.sizes.pop((k, slot), [])
    if sizes and given.p:
        pulls = [p.norm() * size for p, size in zip(given.p, sizes, strict=True)]
        w.betas[k].felt(torch.stack(pulls).max().float() / w.weight(slot))


def correct(w: Worker, item: Instruction, slot: int) -> None:
    """g = the gradient of the Lagrangian in λ_k."""
    assert w.method.correction is not None
    k = item.boundary
    given = terms(w, item, k, slot)
    feel(w, k, slot, given)
    w.values["g", k, slot] = w.method.correction(given)


def distil(w: Worker, item: Instruction, slot: int) -> None:
    """One backward through the AuxNet with g, as in the recursive form; or, with distil="target", Algorithm 1
    in two steps: λ moves by -η g, and the AuxNet takes a step on |λ - AuxNet|², whose gradient is 2 η g."""
    k = item.boundary
    if any(ref.kind == "aux" for ref in item.reads):
        made, weights = w.values["aux", k, slot]
    else:
        with w.statistics_kept(w.auxnets[k].module):
            made, weights = w.run_aux(k, slot), versions.now(w.aux_trained[k])
    share = 2 * w.learning_rate(w.settings.lam_lr) if w.settings.distil == "target" else 1.0
    gradients = times(share * w.rescale(slot), w.values["g", k, slot])
    pairs = [(t, g) for t, g in zip(w.pick(k, made), gradients, strict=True) if t.requires_grad]
    if pairs:
        with versions.put(w.aux_trained[k], weights):
            torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
        w.updater.due |= {f"auxnet {k}", "stage"} if k in w.shares_stage else {f"auxnet {k}"}
    stash_tied(w)


def times(factor: float, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(tensors) if factor == 1.0 else tuple(t * factor for t in tensors)


def store(w: Worker, item: Instruction, slot: int) -> None:
    """λ ← λ - η g for each sample (g per sample, in units of λ - X); in an exact step λ ← X."""
    k, index = item.boundary, index_of(w, slot)
    Xs = w.values["X", k, slot]
    if not any(ref.kind == "g" for ref in item.reads):
        w.stores.setdefault(("lam", k), Store()).put(index, Xs)
        return
    rate = w.learning_rate(w.settings.lam_lr) / w.weight(slot)
    lams, gradients = list(w.stores["lam", k].take(index)), w.values["g", k, slot]
    for i, g in zip(w.differentiable[k], gradients, strict=True):
        lams[i] = lams[i] - g * (rate * psi.per_sample_step(w.settings.psi, Xs[i]))
    w.stores["lam", k].put(index, tuple(lams))


def kappa(w: Worker, item: Instruction, slot: int) -> None:
    """κ_k of these samples: 0 at first."""
    k = item.boundary
    weight = w.weight(slot)
    if k in w.kappanets:
        made = tuple(w.kappanets[k](*w.pick(k, w.values["lam", k, slot])))
        w.values["kappa_graph", k, slot] = made
        found = tuple(t.detach() for t in made)
    else:
        index, kept = index_of(w, slot), w.stores.setdefault(("kappa", k), Store())
        kept.ensure(index, w.pick(k, w.values["X", k, slot]))
        found = kept.take(index)
    w.values["kappa", k, slot] = found if weight == 1.0 else tuple(t * weight for t in found)


def multiply(w: Worker, item: Instruction, slot: int) -> None:
    """κ_k ← κ_k - η/(2β) · ½ ∂ψ/∂λ_k. A network learns the same by one backward with 1/(2β) · ½ ∂ψ/∂λ_k, as a mean over
    the rows that share its weights: a sum would make its step as many times as long.
    """
    k = item.boundary
    lams, Xs = w.pick(k, w.values["lam", k, slot]), w.pick(k, w.values["X", k, slot])
    factor = 1 / (2 * w.beta(k, slot)) / 2
    steps = tuple(psi.gradient(w.settings.psi, lam, X, factor)[0] for lam, X in zip(lams, Xs, strict=True))
    made = w.values.pop(("kappa_graph", k, slot), None)
    if made is not None:
        weight = w.weight(slot)
        torch.autograd.backward(made, [s * (weight / rows(s)) for s in steps])
        w.updater.due.add(f"kappa {k}")
        return
    index, rate = index_of(w, slot), w.learning_rate(w.settings.kappa_lr)
    kept = w.stores["kappa", k]
    kept.put(index, tuple(old - rate * s for old, s in zip(kept.take(index), steps, strict=True)))


def index_of(w: Worker, slot: int) -> Tensor:
    index = w.batches[slot].index
    assert index is not None  # checked by phases.schedule_of
    return index
