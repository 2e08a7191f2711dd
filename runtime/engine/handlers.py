"""What each instruction does on a worker. Messages are the executor's own; everything else is here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence

import torch
from torch import Tensor

from lpcompile.core.method import Terms
from lpcompile.core.schedule import Instruction
from lpcompile.runtime.comm.buffer import draw, offer
from lpcompile.runtime.engine import memory, versions
from lpcompile.runtime.engine.features import features, replay, stage_input
from lpcompile.runtime.engine.worker import Worker
from lpcompile.runtime.penalty import collapse, psi
from lpcompile.runtime.penalty.heads import head
from lpcompile.runtime.penalty.kappa import rows
from lpcompile.runtime.penalty.stores import Store

Handler = Callable[[Worker, Instruction, int], Iterator[None] | None]


def aux_forward(w: Worker, item: Instruction, slot: int) -> None:
    """λ_k = AuxNet_{k-1}(λ_{k-1}); where the schedule says so the graph is kept, and which weights it was made with."""
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
    """λ of this micro-batch's samples, as it was last corrected."""
    k = item.boundary
    w.values["lam", k, slot] = with_noise(w, k, w.stores["lam", k].take(index_of(w, slot)))


def forward(w: Worker, item: Instruction, slot: int) -> None:
    """X_{k+1} = stage_k(λ_k), or the loss; the graph is kept where the schedule says so."""
    if any(ref.kind == "random" for ref in item.writes):
        return features(w, item, slot)
    lams = stage_input(w, item, slot)
    with versions.held(w, slot), memory.weighed(w, slot) if w.weigh else contextlib.nullcontext():
        found, loss = w.run_stage(lams, slot)
    leaves = w.pick(w.rank, lams) if lams else ()
    if loss is not None:
        batch = w.batches[slot]
        w.note("loss", loss.detach(), batch.weight)
        weight = w.weight(slot)
        w.values["graph", w.rank, slot] = (leaves, loss if weight == 1.0 else loss * weight)
    else:
        w.values["graph", w.rank, slot] = (leaves, w.pick(w.rank + 1, found))
        w.values["X", w.rank + 1, slot] = tuple(t.detach() for t in found)


def penalize(w: Worker, item: Instruction, slot: int) -> None:
    """d = β ∂ψ(λ_k, X_k)/∂λ_k, for the micro-batch's weight; and the violation."""
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
        collapse.check(w.settings.collapse, w.varied, w.rank, k, w.step, {"λ": lams, "X": Xs})


def backward(w: Worker, item: Instruction, slot: int) -> None:
    """The stage's backward from the loss, or from what the method makes of d, p and κ at X_{k+1}."""
    leaves, ends = w.values["graph", w.rank, slot]
    factor = w.rescale(slot)
    with versions.held(w, slot):
        if w.last and w.method.heads and not ends.requires_grad:
            pass  # a stage without parameters, and no gradient goes further down
        elif w.last:
            ends.backward(None if factor == 1.0 else torch.full_like(ends, factor))
        else:
            given = terms(w, item, w.rank + 1, slot)
            feel(w, w.rank + 1, slot, given)
            seeds = times(factor, w.method.adjoint(given))
            pairs = [(end, seed) for end, seed in zip(ends, seeds, strict=True) if end.requires_grad]
            if pairs:
                torch.autograd.backward([end for end, _ in pairs], [seed for _, seed in pairs])
    w.updater.due.add("stage")
    w.values["graph", w.rank, slot] = None
    w.graph_bytes.pop(slot, None)
    stash_tied(w)
    if item.writes:
        found = tuple(torch.zeros_like(t) if t.grad is None else t.grad for t in leaves)
        w.values["p", w.rank, slot] = times(1 / factor, found)


def times(factor: float, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(tensors) if factor == 1.0 else tuple(t * factor for t in tensors)


def terms(w: Worker, item: Instruction, k: int, slot: int) -> Terms:
    read = {ref.kind for ref in item.reads if ref.boundary == k}
    d, p, kappa = (w.values[kind, k, slot] if kind in read else () for kind in ("d", "p", "kappa"))
    return Terms(d, p, kappa, w.settings.lam_weight)


def feel(w: Worker, k: int, slot: int, given: Terms) -> None:
    """Let a relative β follow |p||X|: every rank that weighs boundary k sees the same micro-batches in turn."""
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
    """One backward through the AuxNet with g: the gradient step of a regression on the corrected λ."""
    k = item.boundary
    if any(ref.kind == "aux" for ref in item.reads):
        made, weights = w.values["aux", k, slot]
    else:
        with w.statistics_kept(w.auxnets[k].module):
            made, weights = w.run_aux(k, slot), versions.now(w.aux_trained[k])
    gradients = times(w.rescale(slot), w.values["g", k, slot])
    pairs = [(t, g) for t, g in zip(w.pick(k, made), gradients, strict=True) if t.requires_grad]
    if pairs:
        with versions.put(w.aux_trained[k], weights):
            torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
        w.updater.due |= {f"auxnet {k}", "stage"} if k in w.shares_stage else {f"auxnet {k}"}
    stash_tied(w)


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
    assert index is not None  # the trainer has asked for it
    return index


def stash_tied(w: Worker) -> None:
    """Gradients of parameters that other ranks use too are kept apart until all are summed."""
    for name, parameter in w.tied.items():
        if parameter.grad is not None:
            before = w.tied_gradients.get(name)
            w.tied_gradients[name] = parameter.grad if before is None else before + parameter.grad
            parameter.grad = None


def average(w: Worker, item: Instruction, slot: int) -> None:
    """Gradients of stage, AuxNets and κ-networks become their means over the replicas, as in DDP."""
    if w.apply and w.mesh is not None:
        every = [*w.updater.parameters, *(p for ps, _ in w.updater.others.values() for p in ps)]
        w.mesh.average([*(p.grad for p in every), *(w.tied_gradients.get(name) for name in sorted(w.tied))])


def tied(w: Worker, item: Instruction, slot: int) -> Iterator[None]:
    """Sum the gradients of tied parameters over their ranks, last stage first as in one backward."""
    if not w.apply:
        return
    for name, parameter in w.tied.items():
        mine = w.tied_gradients.pop(name, None)
        ranks = w.owners[name]
        tensor = torch.zeros_like(parameter) if mine is None else mine
        found = yield from gather(w, f"tied {name}", ranks, tensor)
        total = found[-1]
        for other in reversed(found[:-1]):
            total = total + other
        if w.steps_tied(name):
            parameter.grad = total
            w.updater.due.add("stage")


def norm(w: Worker, item: Instruction, slot: int) -> Iterator[None]:
    """The norms of all ranks' gradients."""
    if not w.apply:
        return
    w.norms = yield from gather(w, "norm", range(w.K), w.updater.norm(w.device))


def step(w: Worker, item: Instruction, slot: int) -> Iterator[None]:
    """Optimizers step. In one process a tied parameter is one tensor: its other users wait until it is done."""
    if w.apply:
        with versions.apart(w):
            w.updater.apply(w.norms)
    if w.shared:
        for name in w.tied:
            yield from gather(w, f"stepped {name}", w.owners[name], torch.zeros(()))


def gather(w: Worker, name: str, ranks: Sequence[int], tensor: Tensor) -> Generator[None, None, list[Tensor]]:
    found = w.transport.gather(w.rank, name, ranks, tensor)
    while found is None:
        yield
        found = w.transport.gather(w.rank, name, ranks, tensor)
    return found


HANDLERS: dict[str, Handler] = {
    "aux_forward": aux_forward,
    "recall": recall,
    "stash": versions.stash,
    "forward": forward,
    "head": head,
    "offer": offer,
    "draw": draw,
    "replay": replay,
    "penalize": penalize,
    "kappa": kappa,
    "backward": backward,
    "correct": correct,
    "distil": distil,
    "store": store,
    "multiply": multiply,
    "average": average,
    "tied": tied,
    "norm": norm,
    "step": step,
}
