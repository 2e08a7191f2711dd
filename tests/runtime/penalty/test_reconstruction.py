"""`reconstruct`: a stage with a local loss must also keep its input readable."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lpcompile.core.stage_io import TensorSpec
from lpcompile.errors import UsageError
from lpcompile.models import resnet20
from lpcompile.runtime.penalty.reconstruction import make_decoder
from tests.runtime.small import Recorder, batches, compiled, mlp, recorded, sgd


def spec(*shape, dtype=torch.float32):
    return TensorSpec(shape, dtype, True, (1, *(0 for _ in shape[1:])))


@pytest.mark.parametrize("micro", [1, 2])
def test_the_local_loss_has_the_error_of_the_stages_input_beside_it(micro):
    (x, y), *_ = batches(1)
    program = compiled(mlp(), 3, x, method="dgl")
    trainer = program.trainer(F.cross_entropy, optimizer=Recorder, method="dgl", clip=0, micro=micro, reconstruct=0.3)
    metrics = trainer.step(x, y)
    expected, errors = {}, [0.0, 0.0]
    for k, stage in enumerate(program.stages):
        for x_part, y_part in zip(x.chunk(micro), y.chunk(micro), strict=True):
            X = x_part
            for below in program.stages[:k]:
                X = below(X).detach()
            out = stage(X)
            loss, weights = F.cross_entropy(out if k == 2 else program.heads[k](out), y_part), list(stage.parameters())
            if k < 2:
                layer = trainer.workers[k].head.decoder.layer
                error = (layer(out) - X).square().mean() / X.var()
                errors[k] += float(error.detach()) / micro
                loss = loss + 0.3 * error
                weights += [*program.heads[k].parameters(), *layer.parameters()]
            for p, g in zip(weights, torch.autograd.grad(loss / micro, weights), strict=True):
                expected[p] = expected.get(p, 0) + g
    found = recorded(trainer)
    assert set(found) == set(expected)
    for p, g in expected.items():
        torch.testing.assert_close(found[p], g, rtol=1e-9, atol=1e-12)
    assert [metrics[f"reconstruction {k}"] for k in (0, 1)] == pytest.approx(errors)


def test_a_decoder_learns_to_read_the_input():
    data = batches(1)[0]
    program = compiled(mlp(), 2, data[0], method="dgl")
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="dgl", reconstruct=1.0)
    found = [trainer.step(*data)["reconstruction 0"] for _ in range(60)]
    assert found[-1] < 0.7 * found[0]


def test_a_phase_of_a_recipe_has_its_own_weight():
    (x, y), *_ = batches(1)
    program = compiled(mlp(), 2, x, method="dgl")
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="dgl@1steps,dgl[reconstruct=0.5]")
    assert ["reconstruction 0" in trainer.step(x, y) for _ in range(2)] == [False, True]


def test_images_are_averaged_to_the_size_of_the_output():
    x, y = torch.randn(4, 3, 16, 16), torch.arange(4)
    program = compiled(resnet20(), 3, x, method="dgl")
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="dgl", reconstruct=0.5)
    metrics = trainer.step(x, y)
    assert metrics["reconstruction 0"] > 0 and metrics["reconstruction 1"] > 0


def test_a_decoder_stands_between_the_largest_tensors_of_one_form():
    made = make_decoder([spec(8, 4), spec(8, 3, 16, 16)], [spec(8, 16, 8, 8), spec(8, 5)], 0)
    assert (made.seen, made.wanted) == (0, 1) and isinstance(made.layer, nn.Conv2d)
    tokens = make_decoder([spec(8, 10, 6)], [spec(8, 10, 12)], 0)
    assert isinstance(tokens.layer, nn.Linear) and tokens.layer.weight.shape == (6, 12)
    assert make_decoder([spec(8, 10, dtype=torch.int64)], [spec(8, 10, 12)], 0) is None  # ids
    assert make_decoder([spec(8, 9, 6)], [spec(8, 10, 12)], 0) is None
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert torch.equal(make_decoder([spec(8, 4)], [spec(8, 4)], 1).layer.weight,
                       make_decoder([spec(8, 4)], [spec(8, 4)], 1).layer.weight)  # fmt: skip
    assert torch.equal(torch.get_rng_state(), before)


def test_a_negative_weight_is_refused():
    (x, _), *_ = batches(1)
    with pytest.raises(UsageError, match="reconstruct=-1 is not a number of at least 0"):
        compiled(mlp(), 2, x, method="dgl").trainer(F.cross_entropy, optimizer=sgd, reconstruct=-1)
