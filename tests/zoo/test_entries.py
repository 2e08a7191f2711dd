"""The zoo is data: it lists fast and without heavy imports, and each entry builds the same model every time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from lpcompile.errors import UsageError
from lpcompile.zoo import SUITES, ZooEntry, find, zoo
from tests.fresh_python import printed


def tensors(output: Any) -> list[torch.Tensor]:
    leaves = tree_leaves(output)
    leaves += [value for leaf in leaves if hasattr(leaf, "__dataclass_fields__") for value in vars(leaf).values()]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def step(entry: ZooEntry, batch: int = 2) -> None:
    model, make_inputs = entry.build()
    args, kwargs = make_inputs(batch)
    outputs = tensors(model(*args, **kwargs))
    assert outputs and all(torch.isfinite(output).all() for output in outputs)
    torch.stack([output.float().square().mean() for output in outputs]).sum().backward()
    assert any(parameter.grad is not None for parameter in model.parameters())


def test_the_zoo_is_large_and_every_name_is_unique_and_can_be_found() -> None:
    sizes = {suite: len(zoo(suite)) for suite in SUITES}
    assert sizes["torchvision"] == 80 and sizes["timm"] >= 97 + 20 and sizes["hf"] >= 67 and sizes["user"] >= 25
    names = [entry.name for entry in zoo()]
    assert len(names) == len(set(names)) == sum(sizes.values())
    assert find("user:UNet").suite == "user"


def test_an_unknown_name_or_suite_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean torchvision:resnet18"):
        find("torchvision:resnet19")
    with pytest.raises(UsageError, match="the suites are torchvision, timm, hf, user"):
        zoo("keras")


def test_listing_imports_none_of_the_packages() -> None:
    heavy = "{'torchvision', 'timm', 'transformers'}"
    code = f"import sys; from lpcompile.zoo import zoo; zoo(); print({heavy} & {{*sys.modules}})"
    assert printed(code) == "set()"


def test_an_entry_builds_the_same_model_every_time_and_keeps_the_random_state() -> None:
    before = torch.get_rng_state()
    entry = find("user:UNet")
    (first, inputs), (second, again) = entry.build(), entry.build()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert torch.equal(inputs(2)[0][0], again(2)[0][0])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("entry", zoo("user"), ids=lambda entry: entry.name)
def test_a_user_model_trains_at_several_batch_sizes(entry: ZooEntry) -> None:
    for batch in (2, 3):
        step(entry, batch)


def test_every_torchvision_classifier_is_listed() -> None:
    torchvision = pytest.importorskip("torchvision")
    from lpcompile.sources.packages import TORCHVISION_CLASSIFIERS as NAMES

    offered = {*torchvision.models.list_models(module=torchvision.models)}
    assert {*NAMES} <= offered
    if torchvision.__version__.startswith("0.29."):  # later ones may offer more
        assert offered == {*NAMES}


def test_every_timm_family_is_listed_under_its_name() -> None:
    timm = pytest.importorskip("timm")
    from lpcompile.zoo.timm_families import FAMILIES, MORE

    assert [name for family, name in FAMILIES.items() if name not in timm.list_models(module=family)] == []
    assert {*MORE} <= {*timm.list_models()}
    if timm.__version__ == "1.0.30":  # later ones may offer more
        assert {*timm.list_modules()} == {*FAMILIES}


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry", [entry for entry in zoo() if entry.suite != "user" and not entry.heavy], ids=lambda entry: entry.name
)
def test_a_zoo_model_trains_a_step(entry: ZooEntry) -> None:
    pytest.importorskip("transformers" if entry.suite == "hf" else entry.suite)
    step(entry)
