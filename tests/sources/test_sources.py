"""What a person types becomes a model that runs on the inputs that come with it, or an error that helps."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

from lpcompile import sources
from lpcompile.errors import UsageError
from lpcompile.models import REGISTRY
from lpcompile.sources import BUILT_IN, DEFAULT_BATCH, KINDS, PYTHON, Source, kind_of, load
from tests.fresh_python import printed

TINY_BERT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 40,
}


def run(source: Source) -> torch.Tensor:
    output = source.model(*source.example_args, **source.example_kwargs)
    return output if isinstance(output, torch.Tensor) else output[0]


def shapes(source: Source) -> list[tuple[int, ...]]:
    return [tuple(x.shape) for x in (*source.example_args, *source.example_kwargs.values())]


def test_a_built_in_name_comes_with_its_inputs() -> None:
    source = load("resnet20", batch=2)
    assert source.name == "resnet20" and shapes(source) == [(2, 3, 32, 32)]
    assert run(source).shape == (2, 10)
    assert shapes(load("resnet20"))[0][0] == DEFAULT_BATCH
    assert run(load("gpt_tiny", batch=2, vocabulary=300)).shape == (2, 64, 300)


@pytest.mark.parametrize(
    ("spec", "form", "fresh"),
    [
        ("resnet20", "NAME", True),
        ("no_such_model", "NAME", True),
        ("torchvision:resnet18", "torchvision:NAME", True),
        ("timm:x", "timm:NAME", True),
        ("hf:folder/config.json", "hf:TYPE", True),
        ("net.py", "package.module:factory or file.py", False),
        ("path/net.py:build", "package.module:factory or file.py", False),
        ("timm.models:create", "package.module:factory or file.py", False),
        ("C:/net.py", "package.module:factory or file.py", False),
    ],
)
def test_a_name_tells_its_kind_and_whether_its_weights_are_fresh(spec: str, form: str, fresh: bool) -> None:
    assert (kind_of(spec).form, kind_of(spec).fresh) == (form, fresh)


def test_every_kind_of_the_table_has_a_loader_and_its_example_is_of_that_kind() -> None:
    for kind in KINDS:
        module, _, function = kind.loader.partition(":")
        assert callable(getattr(importlib.import_module(f"lpcompile.sources.{module}"), function))
        assert all(kind_of(word.split()[0]) is kind for word in kind.example.replace(" or ", ", ").split(", "))
    assert [kind for kind in KINDS if not kind.prefix] == [BUILT_IN, PYTHON]


def test_an_unknown_name_lists_all_kinds() -> None:
    with pytest.raises(UsageError) as raised:
        load("qqqq")
    assert str(raised.value) == (
        "no built-in model 'qqqq'; the built-in models are " + ", ".join(REGISTRY) + ". Models from "
        "elsewhere are written torchvision:NAME, timm:NAME, hf:TYPE, package.module:factory or file.py"
    )


def test_the_table_is_read_without_torch() -> None:
    code = "import sys, lpcompile.sources as s; s.KINDS; print('torch' in sys.modules)"
    assert printed(code) == "False"
    with pytest.raises(AttributeError, match=r"'lpcompile\.sources' has no attribute 'sorce'"):
        sources.sorce  # noqa: B018


def test_the_seed_decides_weights_and_inputs_and_the_callers_random_state_is_kept() -> None:
    before = torch.get_rng_state()
    first, same, other = load("resnet20", batch=1), load("resnet20", batch=1), load("resnet20", batch=1, seed=1)
    assert torch.equal(first.model.conv1.weight, same.model.conv1.weight)  # type: ignore[union-attr]
    assert not torch.equal(first.model.conv1.weight, other.model.conv1.weight)  # type: ignore[union-attr]
    assert torch.equal(first.example_args[0], same.example_args[0])
    assert not torch.equal(first.example_args[0], other.example_args[0])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ("torchvision:resnet18", (3, 224, 224)),
        ("torchvision:inception_v3", (3, 299, 299)),
        ("torchvision:swin_v2_t", (3, 256, 256)),
        ("torchvision:vit_h_14", (3, 224, 224)),
        ("torchvision:r3d_18", (3, 16, 112, 112)),
        ("torchvision:fcn_resnet50", (3, 520, 520)),
    ],
)
def test_torchvision_tells_the_input_size(spec: str, shape: tuple[int, ...]) -> None:
    source = load(spec, batch=1, device="meta")
    assert shapes(source) == [(1, *shape)]


def test_timm_tells_the_input_size_and_follows_model_arguments() -> None:
    pytest.importorskip("timm")
    assert shapes(load("timm:vit_tiny_patch16_224", batch=1, device="meta")) == [(1, 3, 224, 224)]
    source = load("timm:vit_tiny_patch16_224", batch=1, img_size=32, in_chans=1, depth=1)
    assert shapes(source) == [(1, 1, 32, 32)]
    assert run(source).shape == (1, 1000)


def test_a_model_type_of_transformers_needs_no_more_than_its_name() -> None:
    pytest.importorskip("transformers")
    source = load("hf:bert", batch=2, **TINY_BERT)
    assert set(source.example_kwargs) == {"input_ids", "attention_mask"}
    assert shapes(source)[0] == (2, 38)  # the longest text this configuration has positions for
    assert source.example_kwargs["input_ids"].max() < 50
    assert run(source).shape == (2, 2)
    assert "BertForSequenceClassification" in source.notes[0]


def test_hf_chooses_the_head_and_the_inputs_by_the_kind_of_model() -> None:
    pytest.importorskip("transformers")
    vision = load("hf:vit", batch=1, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=32)
    assert shapes(vision) == [(1, 3, 32, 32)] and run(vision).shape == (1, 2)
    language = load("hf:gpt2", batch=1, n_embd=16, n_layer=1, n_head=2, vocab_size=40)
    assert type(language.model).__name__ == "GPT2LMHeadModel" and run(language).shape == (1, 128, 40)
    translation = load("hf:t5", batch=1, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=40)
    assert "decoder_input_ids" in translation.example_kwargs and run(translation).shape == (1, 128, 40)


def test_hf_reads_a_config_file_and_the_architecture_it_names(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "bert", "architectures": ["BertForMaskedLM"], **TINY_BERT}))
    for spec in (f"hf:{path}", f"hf:{tmp_path}"):
        source = load(spec, batch=1, input_shape="12")
        assert type(source.model).__name__ == "BertForMaskedLM"
        assert run(source).shape == (1, 12, 50)
    path.write_text("{}")
    with pytest.raises(UsageError, match="has no model_type"):
        load(f"hf:{path}")


def test_a_model_of_seven_billion_parameters_loads_without_its_weights() -> None:
    pytest.importorskip("transformers")
    source = load("hf:llama", batch=1, device="meta")
    assert sum(p.numel() for p in source.model.parameters()) > 6e9
    assert source.example_kwargs["input_ids"].device.type == "meta"


NET = """
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)
    def forward(self, x):
        return x + self.layer(x)

class Net(nn.Sequential):
    def __init__(self, depth=2):
        super().__init__(*(Block(4) for _ in range(depth)))
"""


def test_a_file_with_one_buildable_class_needs_only_an_input_shape(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(NET)
    source = load(str(path), batch=3, input_shape="4")
    assert type(source.model).__name__ == "Net" and run(source).shape == (3, 4)
    assert len(load(f"{path}:Net", batch=3, input_shape=(4,), depth=5).model) == 5  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"nothing tells the input shape .* pass --input"):
        load(str(path))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def build():\n    return Net(), torch.ones(5, 4)", (5, 4)),
        ("def model():\n    return Net(), (torch.ones(6, 4),)", (6, 4)),
        ("def make_model():\n    return Net(), {'input': torch.ones(7, 4)}", (7, 4)),
        ("model = Net()\nexample_inputs = torch.ones(8, 4)", (8, 4)),
        ("def example_inputs(batch):\n    return torch.ones(batch, 4)", (3, 4)),
    ],
)
def test_a_file_may_give_its_own_inputs(tmp_path: Path, code: str, expected: tuple[int, ...]) -> None:
    path = tmp_path / "own.py"
    path.write_text(f"import torch\n{NET}\n{code}\n")
    source = load(str(path), batch=3)
    assert run(source).shape == expected
    assert bool(source.notes) == (expected[0] != 3)  # a batch that could not be honoured is told


def test_a_factory_in_an_importable_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_package").mkdir()
    (tmp_path / "some_package" / "nets.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    assert run(load("some_package.nets:Net", batch=2, input_shape="4")).shape == (2, 4)
    assert sys.path == path


def test_several_inputs_with_dtypes_and_names(tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text(
        "from torch import nn\n"
        "class Two(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.words = nn.Embedding(2, 4)\n"
        "    def forward(self, x, ids, *, flag):\n"
        "        return x + self.words(ids).sum(1) + flag\n"
    )
    source = load(str(path), batch=3, input_shape="4, 7:int64, flag=1:bool")
    assert [x.dtype for x in source.example_args] == [torch.float32, torch.int64]
    assert source.example_kwargs["flag"].dtype == torch.bool
    assert run(source).shape == (3, 4)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resnet111", "did you mean resnet110"),
        ("resnet50", "did you mean torchvision:resnet50"),
        ("qqqq", "the built-in models are resnet20, "),
        ("torchvision:resnet51", "did you mean torchvision:resnet50"),
        ("torchvision:maskrcnn_resnet50_fpn", "pass --input"),
        ("timm:convnext_tinny", "did you mean timm:convnext_tiny"),
        ("hf:brt", "did you mean hf:bert"),
        ("hf:missing.json", "cannot read missing.json"),
        ("no_such_package.nets:Net", "run from the folder that contains no_such_package"),
        ("missing/net.py", "no file missing/net.py"),
        ("json:dumb", "json has no factory 'dumb'; it has dump, dumps, "),
        ("collections:OrderedDict", "gave a OrderedDict; a factory must return an nn.Module"),
        (":", "does not name a model"),
    ],
)
def test_a_bad_specification_says_what_to_do(spec: str, message: str) -> None:
    for package in ("timm", "transformers"):
        if spec.startswith({"timm": "timm:", "transformers": "hf:"}[package]):
            pytest.importorskip(package)
    with pytest.raises(UsageError, match=message):
        load(spec)


@pytest.mark.parametrize(("text", "message"), [("3x", "is not a shape"), ("", "is not a shape"), ("3:int3", "'int3'")])
def test_a_bad_input_shape_shows_how_to_write_one(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load("resnet20", input_shape=text)


def test_an_error_in_the_users_code_is_told_with_its_kind(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def build():\n    raise RuntimeError('out of cheese')\n")
    with pytest.raises(UsageError, match=r"broken\.py: building the model failed with RuntimeError: out of cheese"):
        load(str(path))
    path.write_text("import torch.nope\n")
    with pytest.raises(UsageError, match=r"importing it failed with ModuleNotFoundError"):
        load(str(path))
    path.write_text(NET.replace("depth=2", "depth"))
    with pytest.raises(UsageError, match=r"no class can be built without arguments \(found Block, Net\)"):
        load(str(path))


@pytest.mark.parametrize(
    ("package", "spec"), [("torchvision", "torchvision:x"), ("timm", "timm:x"), ("transformers", "hf:x")]
)
def test_a_missing_package_names_the_command_that_installs_it(
    package: str, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=f"pip install {package}"):
        load(spec)
