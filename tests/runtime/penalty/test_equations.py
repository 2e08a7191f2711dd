"""Every gradient that a method applies, against autograd on the Lagrangian written out in one process."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from lpcompile.runtime.penalty import psi
from tests.runtime.small import Recorder, batches, compiled, linear_auxnets, mlp, recorded

K, BETA = 3, 0.7
HOSTS = ([0, 1], [1, 2], [0, 2], [1, 1])


def lagrangian(program, auxnets, x, y, *, kind="scaled", kappa=None, recursive=False, p_as_kappa=False, lams=None):
    """One micro-batch: gradients of stage weights, of λ, of AuxNet weights, of κ; all by autograd.

    L = loss + Σ_k β ψ(λ_k, X_k) - κ_k·(λ_k - X_k), with λ_k = AuxNet_{k-1}(λ_{k-1}) taken as free variables.
    """
    stages = program.stages
    made, free = [], []
    for k in range(1, K):
        source = x if recursive or k == 1 else free[-1].detach()
        made.append(auxnets[k - 1](source) if lams is None else lams[k - 1])
        free.append(made[-1].detach().clone().requires_grad_())
    outs = [stages[k](x if k == 0 else free[k - 1]) for k in range(K)]
    weights = [p for s in stages for p in s.parameters()]
    if p_as_kappa:  # κ_k := p_k, from the top down; p is the stage's derivative, so κ_k's own term in λ_k is left out
        kappa = [None] * (K - 1)
        kappa[K - 2] = torch.autograd.grad(F.cross_entropy(outs[-1], y), free[K - 2], retain_graph=True)[0]
        for k in reversed(range(1, K - 1)):
            local = BETA * psi.value(kind, free[k].detach(), outs[k]) + (kappa[k] * outs[k]).sum()
            kappa[k - 1] = torch.autograd.grad(local, free[k - 1], retain_graph=True)[0]
        terms = [(kappa[k] * outs[k]).sum() for k in range(K - 1)]
    else:
        kappa = [torch.zeros_like(f) for f in free] if kappa is None else kappa
        kappa = [k.detach().clone().requires_grad_() for k in kappa]
        terms = [-(kappa[k] * (free[k] - outs[k])).sum() for k in range(K - 1)]
    L = F.cross_entropy(outs[-1], y) + sum(BETA * psi.value(kind, free[k], outs[k]) for k in range(K - 1)) + sum(terms)
    found = torch.autograd.grad(L, [*weights, *free, *([] if p_as_kappa else kappa)], allow_unused=True)
    gradients = dict(zip(weights, found, strict=False))
    g = found[len(weights) : len(weights) + K - 1]
    for k, aux in enumerate(auxnets if lams is None else ()):
        parameters = list(aux.parameters())
        gradients |= dict(zip(parameters, torch.autograd.grad(made[k], parameters, g[k]), strict=True))
    return gradients, g, found[len(weights) + K - 1 :], [o.detach() for o in outs]


def assert_same(trainer, expected):
    found = recorded(trainer)
    assert set(found) == set(expected)
    for parameter, gradient in expected.items():
        torch.testing.assert_close(found[parameter], gradient, rtol=1e-9, atol=1e-12)


def total(parts):
    found = {}
    for gradients, weight in parts:
        for p, g in gradients.items():
            found[p] = found.get(p, 0) + weight * g
    return found


def setup(method, hosts, auxnets=True, **options):
    x, _ = batches()[0]
    program = compiled(mlp(), K, x, hosts)
    nets = linear_auxnets(K)
    options = {"beta": BETA, "clip": 0, **options}
    if auxnets:
        options["auxnets"] = nets
    return program, nets, program.trainer(F.cross_entropy, optimizer=Recorder, method=method, **options)


@pytest.mark.parametrize("kind", ["scaled", "l2", "l1", "linf"])
@pytest.mark.parametrize("hosts", HOSTS)
def test_penalty_applies_the_gradients_of_its_lagrangian(hosts, kind):
    program, nets, trainer = setup("penalty", hosts, psi=kind)
    x, y = batches()[0]
    metrics = trainer.step(x, y)
    gradients, *_ = lagrangian(program, nets, x, y, kind=kind)
    assert_same(trainer, gradients)
    assert metrics["loss"] == pytest.approx(F.cross_entropy(program.stages[2](nets[1](nets[0](x))), y).item())


@pytest.mark.parametrize("hosts", HOSTS)
def test_recursive_auxnets_start_from_the_models_input(hosts):
    program, nets, trainer = setup("penalty", hosts, recursive=True)
    x, y = batches()[0]
    trainer.step(x, y)
    assert_same(trainer, lagrangian(program, nets, x, y, recursive=True)[0])


@pytest.mark.parametrize("micro", [2, 3])
def test_micro_batches_add_up_to_their_share_of_the_batch(micro):
    program, nets, trainer = setup("penalty", [0, 1], micro=micro)
    x, y = batches()[0]
    trainer.step(x, y)
    ends = [8 * i // micro for i in range(micro + 1)]
    parts = [(lagrangian(program, nets, x[a:b], y[a:b])[0], (b - a) / 8) for a, b in pairwise(ends)]
    assert_same(trainer, total(parts))


@pytest.mark.parametrize("options", [{"lockstep": True}, {"micro": 1}, {"micro": 2}, {"micro": 4}])
@pytest.mark.parametrize("hosts", HOSTS)
def test_multiplier_descends_along_p_and_the_penalty(hosts, options):
    program, nets, trainer = setup("multiplier", hosts, **options)
    data = batches(3)
    for x, y in data:
        trainer.step(x, y)
    trainer.flush()
    M = trainer.micro
    cut = [(x[8 * i // M : 8 * (i + 1) // M], y[8 * i // M : 8 * (i + 1) // M]) for x, y in data for i in range(M)]
    assert_same(trainer, total([(lagrangian(program, nets, x, y, p_as_kappa=True)[0], 1 / M) for x, y in cut]))


@pytest.mark.parametrize("host", [0, 1])
def test_a_late_auxnet_learns_through_the_weights_that_made_its_lam(host):
    data = batches(4)
    program, net = compiled(mlp(), 2, data[0][0], [host]), _tanh_auxnet()
    learnt, late = [], []  # since the last step: (weights that made λ, its input, the gradient in λ)

    def note(module, args, lam):
        weights = {n: p.detach().clone() for n, p in module.named_parameters()}
        lam.register_hook(lambda g: learnt.append((weights, args[0], g)))

    class Moving(torch.optim.SGD):
        def step(self, closure=None):
            parameters = self.param_groups[0]["params"]
            total = [torch.zeros_like(p) for p in parameters]
            for weights, x, g in learnt:
                leaves = {n: w.clone().requires_grad_() for n, w in weights.items()}
                found = torch.autograd.grad(functional_call(_tanh_auxnet(), leaves, (x,)), list(leaves.values()), g)
                total = [t + f for t, f in zip(total, found, strict=True)]
                late.append(not torch.equal(next(iter(weights.values())), parameters[0]))
            for p, expected in zip(parameters, total, strict=True):
                torch.testing.assert_close(p.grad, expected, rtol=1e-12, atol=1e-15)
            learnt.clear()
            super().step()

    net.register_forward_hook(note)
    options = {"beta": BETA, "clip": 0, "auxnets": [net], "micro": 2, "aux_optimizer": lambda ps: Moving(ps, 0.5)}
    trainer = program.trainer(F.cross_entropy, optimizer=Recorder, method="multiplier", **options)
    for x, y in data:
        trainer.step(x, y)
    trainer.flush()
    assert late == [False, True] * len(data)  # a step lay between, for every second micro-batch


def _tanh_auxnet():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).double()


@pytest.mark.parametrize("hosts", HOSTS)
def test_multiplier_with_exact_auxnets_gives_backpropagations_gradients(hosts):
    x, y = batches()[0]
    program = compiled(mlp(), K, x, hosts)
    nets = [copy.deepcopy(stage) for stage in program.stages[:-1]]
    options = {"beta": BETA, "lockstep": True, "clip": 0, "auxnets": nets, "micro": 1}
    trainer = program.trainer(F.cross_entropy, optimizer=Recorder, method="multiplier", **options)
    metrics = trainer.step(x, y)
    model = program.module
    F.cross_entropy(model(x), y).backward()
    found = recorded(trainer)
    for p in model.parameters():
        torch.testing.assert_close(found[p], p.grad, rtol=1e-12, atol=1e-15)
    assert metrics["violation 1"] == metrics["violation 2"] == 0


@pytest.mark.parametrize("hosts", HOSTS)
def test_lagrangian_with_stored_multipliers(hosts):
    program, nets, trainer = setup("lagrangian", hosts, psi="l2", kappa_lr=0.3)
    x, y = batches()[0]
    index = torch.arange(8) * 3
    expected = []
    kappa = [torch.zeros(8, 6, dtype=torch.float64) for _ in range(K - 1)]
    for _ in range(3):
        trainer.step(x, y, index)
        gradients, _, of_kappa, _ = lagrangian(program, nets, x, y, kind="l2", kappa=kappa)
        expected.append((gradients, 1))
        # κ ← κ - η/(2β)(λ - X) per sample of the mean, and ∂L/∂κ = -(λ - X)
        kappa = [k + 0.3 / (2 * BETA) * d / 8 for k, d in zip(kappa, of_kappa, strict=True)]
    assert_same(trainer, total(expected))
    for k in (1, 2):
        stored = next(w.stores["kappa", k] for w in trainer.workers if ("kappa", k) in w.stores)
        torch.testing.assert_close(stored.take(index)[0], kappa[k - 1], rtol=1e-9, atol=1e-12)
    assert all(bool(k.any()) for k in kappa)


@pytest.mark.parametrize("hosts", HOSTS)
def test_lagrangian_with_multipliers_from_a_network(hosts):
    torch.manual_seed(2)
    kappanets = [Tupled(), Tupled()]
    program, nets, trainer = setup("lagrangian", hosts, kappa="auxnet", kappanets=kappanets)
    x, y = batches()[0]
    trainer.step(x, y)
    lams = [nets[0](x)]
    lams.append(nets[1](lams[0]))
    made = [net(lam.detach())[0] for net, lam in zip(kappanets, lams, strict=True)]
    gradients, _, _, outs = lagrangian(program, nets, x, y, kappa=made)
    for net, kappa, lam, X in zip(kappanets, made, lams, outs, strict=False):
        leaf = lam.detach().requires_grad_()
        slope = torch.autograd.grad(psi.value("scaled", leaf, X), leaf)[0]
        found = torch.autograd.grad(kappa, list(net.parameters()), slope / 2 / (2 * BETA) / len(x))
        gradients |= dict(zip(net.parameters(), found, strict=True))
    assert_same(trainer, gradients)


class Tupled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 6, dtype=torch.float64)

    def forward(self, lam):
        return (self.layer(lam) * 0.01,)


@pytest.mark.parametrize("kind", ["scaled", "l2"])
@pytest.mark.parametrize("hosts", HOSTS)
def test_stored_auxiliary_variables_start_at_x_and_are_corrected(hosts, kind):
    program, nets, trainer = setup("penalty-stored", hosts, auxnets=False, psi=kind, lam_lr=0.2)
    x, y = batches()[0]
    index = torch.tensor([3, 1, 9, 0, 4, 5, 6, 7])
    trainer.step(x, y, index)  # the first time is exact
    X = [program.stages[0](x).detach()]
    X.append(program.stages[1](X[0]).detach())
    stores = {k: next(w.stores["lam", k] for w in trainer.workers if ("lam", k) in w.stores) for k in (1, 2)}
    for k in (1, 2):
        torch.testing.assert_close(stores[k].take(index)[0], X[k - 1])
    lams = [lam + 0.1 * torch.randn_like(lam) for lam in X]
    for k in (1, 2):
        stores[k].put(index, (lams[k - 1],))
    before = {p: g.clone() for p, g in recorded(trainer).items()}
    trainer.step(x, y, index)
    gradients, g, _, outs = lagrangian(program, nets, x, y, kind=kind, lams=lams)
    assert_same(trainer, total([(before, 1), (gradients, 1)]))
    for k in (1, 2):
        unit = 8 if kind == "l2" else (outs[k - 1].square().mean() + psi.EPS) * outs[k - 1].numel()
        expected = lams[k - 1] - 0.2 * unit * g[k - 1]
        torch.testing.assert_close(stores[k].take(index)[0], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("hosts", HOSTS)
def test_a_warm_up_is_exact_and_lets_the_auxnets_learn_x(hosts):
    program, nets, trainer = setup("penalty", hosts, warmup=2, micro=1, recouple=0)
    x, y = batches()[0]
    trainer.step(x, y)
    model = program.module
    F.cross_entropy(model(x), y).backward()
    expected = {p: p.grad for p in model.parameters()}
    X = [program.stages[0](x).detach()]
    X.append(program.stages[1](X[0]).detach())
    lam = x
    for k in range(K - 1):
        lam = nets[k](lam.detach())
        slope = torch.autograd.grad(
            BETA * psi.value("scaled", lam, X[k]), list(nets[k].parameters()), retain_graph=True
        )
        expected |= dict(zip(nets[k].parameters(), slope, strict=True))
    assert_same(trainer, expected)
    assert trainer.violation_at_start is None
    trainer.step(x, y)
    trainer.step(x, y)
    assert trainer.violation_at_start > 0 and trainer.method.name == "penalty"


@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_the_pull_on_the_auxnets_has_a_weight_of_its_own(weight):
    program, nets, trainer = setup("penalty", [0, 1], lam_weight=weight)
    x, y = batches()[0]
    trainer.step(x, y)
    found = recorded(trainer)
    with_all, g, *_ = lagrangian(program, nets, x, y)
    free = [nets[0](x).detach()]
    X = program.stages[0](x).detach()
    leaf = free[0].requires_grad_()
    pull = torch.autograd.grad(BETA * psi.value("scaled", leaf, X), leaf)[0]
    expected = torch.autograd.grad(nets[0](x), list(nets[0].parameters()), g[0] - (1 - weight) * pull)
    for p, e in zip(nets[0].parameters(), expected, strict=True):
        torch.testing.assert_close(found[p], e, rtol=1e-9, atol=1e-12)
    for p in program.module.parameters():
        torch.testing.assert_close(found[p], with_all[p], rtol=1e-9, atol=1e-12)
