"""The layers of an AuxNet: whose parameters, whose buffers, which weights."""

from __future__ import annotations

import torch

import lpcompile
from lpcompile import models
from tests.passes.auxnet.families import compiled


def test_a_tied_auxnet_adds_no_parameters_but_has_its_own_statistics() -> None:
    program = compiled("post-activation ResNet", 2, aux="tied")
    aux, stage = program.auxnets[0], program.stages[0]
    mine, theirs = dict(aux.named_parameters()), dict(stage.named_parameters())
    assert mine and all(mine[name] is theirs[name] for name in mine)
    buffers, others = dict(aux.named_buffers()), dict(stage.named_buffers())
    assert buffers and all(buffers[name] is not others[name] for name in buffers)
    before = {name: b.clone() for name, b in others.items()}
    aux(torch.randn(2, 3, 32, 32))
    assert all(torch.equal(before[name], b) for name, b in others.items())
    aux(torch.randn(2, 3, 32, 32)).sum().backward()
    assert theirs["conv1.weight"].grad is not None


def test_batchnorm_of_an_auxnet_counts_for_itself() -> None:
    program = compiled("post-activation ResNet", 2)
    aux, stage = program.auxnets[0], program.stages[0]
    aux(torch.randn(2, 3, 32, 32))
    assert all(int(b) == 1 for n, b in aux.named_buffers() if n.endswith("num_batches_tracked"))
    assert all(int(b) == 0 for n, b in stage.named_buffers() if n.endswith("num_batches_tracked"))


def test_copy_takes_the_weights_of_kept_blocks_and_leaves_the_model_alone() -> None:
    torch.manual_seed(0)
    model = models.resnet20()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    program = lpcompile.parallelize(
        model, 2, example_inputs=torch.randn(2, 3, 32, 32), cost="flops", gate=False, aux_init="copy"
    )
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    for name, p in program.auxnets[0].named_parameters():
        source = before[name][tuple(slice(0, s) for s in p.shape)]
        assert torch.equal(p, source)
