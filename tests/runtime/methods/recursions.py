"""The recursions of delayed methods written out in one process, stage by stage, with weights as plain tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.func import functional_call

LR, MOMENTUM, DECAY = 0.05, 0.9, 0.8  # of `sgd`, and of a scheduler that multiplies the rate in every step


def weights_of(stages):
    return [{n: p.detach().clone() for n, p in stage.named_parameters()} for stage in stages]


def gradient(function, weights, *others):
    """Gradients of a scalar in some weights and in other tensors."""
    leaves = {n: w.clone().requires_grad_() for n, w in weights.items()}
    free = [t.clone().requires_grad_() for t in others]
    found = torch.autograd.grad(function(leaves, *free), [*leaves.values(), *free])
    return dict(zip(leaves, found, strict=False)), found[len(leaves) :]


class Emulation:
    """Stages by their weights: `history[k][t]` is what stage k has when iteration t begins."""

    def __init__(self, stages):
        self.stages, self.K = stages, len(stages)
        self.history = [[w] for w in weights_of(stages)]
        self.speed = [{n: torch.zeros_like(v) for n, v in h[0].items()} for h in self.history]

    def run(self, k, weights, x):
        return functional_call(self.stages[k], weights, (x,))

    def loss(self, versions, x, y):
        for k, weights in enumerate(versions):
            x = self.run(k, weights, x)
        return F.cross_entropy(x, y)

    def delay(self, k, slack=0):
        """How many micro-batches after its own a stage's backward is."""
        return (self.K - 1) * slack + self.K - 1 - k

    def version(self, k, n, M, slack=0):
        """What stage k expects at micro-batch n's backward; with slack its forward is k slack micro-batches late."""
        t = (n + k * slack) // M
        updates = (n + self.delay(k, slack)) // M - t
        now, before = self.history[k][t], self.history[k][max(t - 1, 0)]
        return {name: w + updates * (w - before[name]) for name, w in now.items()}

    def update(self, k, gradients, lr):
        """SGD with momentum; a stage without a gradient keeps its weights and its momentum."""
        old = self.history[k][-1]
        if gradients is not None:
            self.speed[k] = {n: MOMENTUM * v + gradients[n] for n, v in self.speed[k].items()}
            old = {n: w - lr * self.speed[k][n] for n, w in old.items()}
        self.history[k].append(old)

    def state(self):
        return {n: w for h in self.history for n, w in h[-1].items()}


def learning_rate(t, steps):
    return LR * DECAY ** min(t, steps)  # steps that drain the pipeline come after the scheduler's last one


def stashed(stages, data, M=1, predicted=False, slack=0):
    """w_k(t+1) = w_k(t) - η ∇_k Σ loss of M micro-batches, K-1-k behind the step's own.

    Each of them has the weights of all stages from when it came by; where predicted, those that each stage expects when
    it will use the gradient, u updates later: w(t) + u (w(t) - w(t-1)).
    """
    e, steps = Emulation(stages), len(data)
    parts = [(x[8 * i // M : 8 * (i + 1) // M], y[8 * i // M : 8 * (i + 1) // M]) for x, y in data for i in range(M)]
    for t in range(steps + -(-e.delay(0, slack) // M)):
        updates = []
        for k in range(e.K):
            total = None
            for n in range(t * M - e.delay(k, slack), (t + 1) * M - e.delay(k, slack)):
                if 0 <= n < len(parts):
                    then = [e.version(j, n, M, slack) if predicted else h[n // M] for j, h in enumerate(e.history)]
                    loss = lambda w, k=k, n=n, then=then: e.loss([*then[:k], w, *then[k + 1 :]], *parts[n])  # noqa: E731
                    found, _ = gradient(loss, then[k])
                    total = {p: found[p] / M + (0 if total is None else total[p]) for p in found}
            updates.append(total)
        for k, total in enumerate(updates):
            e.update(k, total, learning_rate(t, steps))
    return e.state()


def replayed(stages, data):
    """w_k(t+1) = w_k(t) - η ∂stage_k(X_k[b]; w_k(t))/∂w_k · p_{k+1}[b] with b = t-(K-1-k)."""
    e, steps, X, p = Emulation(stages), len(data), {}, {}
    for t in range(steps + e.K - 1):
        if t < steps:
            X[0, t] = data[t][0]
            for k in range(e.K - 1):
                X[k + 1, t] = e.run(k, e.history[k][t], X[k, t])
        updates, made = [], {}
        for k in range(e.K):
            b = t - (e.K - 1 - k)
            if not 0 <= b < steps:
                updates.append(None)
                continue

            def local(w, x, k=k, b=b, p=p):
                out = e.run(k, w, x)
                return F.cross_entropy(out, data[b][1]) if k == e.K - 1 else (out * p[k + 1, b]).sum()

            found, (made[k, b],) = gradient(local, e.history[k][t], X[k, b])
            updates.append(found)
        p |= made
        for k, found in enumerate(updates):
            e.update(k, found, learning_rate(t, steps))
    return e.state()


def double_buffered(stages, data):
    """w(t+1) = w(t) - η ∇loss(batch t; w(t-1)), w(-1) = w(0)."""
    e, steps = Emulation(stages), len(data)
    for t, (x, y) in enumerate(data):
        then = [h[max(t - 1, 0)] for h in e.history]
        for k in range(e.K):
            loss = lambda w, k=k: e.loss([*then[:k], w, *then[k + 1 :]], x, y)  # noqa: E731, B023
            e.update(k, gradient(loss, then[k])[0], learning_rate(t + 1, steps))
    return e.state()
