"""What `emit` writes: readable, the same every time, safe, and the program itself when it is loaded again.

The golden files in tests/golden/emit are what three models look like. After a change that is meant, write them again:

    LPCOMPILE_GOLDEN=1 python -m pytest -n 0 tests/emit/test_emit.py -k golden
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import lpcompile
from lpcompile import EmitError, InputError, Program, UsageError, models, parallelize
from lpcompile.cli.main import main
from lpcompile.passes.split.split import stage_io
from lpcompile.zoo.check import differences

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "emit"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def program_of(model: nn.Module, K: int, *args: Any, **kwargs: Any) -> Program:
    return parallelize(model, K, example_inputs=args, example_kwargs=kwargs, cost="flops", gate=False)


def mobilenet() -> tuple[nn.Module, Tensor]:
    from torchvision.models import mobilenet_v3_small

    return mobilenet_v3_small(num_classes=10), torch.randn(2, 3, 64, 64)


def gpt() -> tuple[nn.Module, Tensor]:
    return models.gpt_tiny(), torch.randint(0, 50, (2, 64))


GOLDEN_MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "resnet20": lambda: (models.resnet20(), torch.randn(2, 3, 32, 32)),
    "mobilenet_v3_small": mobilenet,
    "gpt_tiny": gpt,
}


# ---- the code


@pytest.mark.parametrize("name", GOLDEN_MODELS)
def test_golden_code(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = GOLDEN_MODELS[name]()
    folder = program_of(model, 2, x).emit(tmp_path / "program")
    golden = [*sorted(folder.glob("*_[0-9].py")), folder / "schedule.json"]
    written = {file.name: file.read_text() for file in golden}
    if os.environ.get("LPCOMPILE_GOLDEN"):
        (GOLDEN / name).mkdir(parents=True, exist_ok=True)
        for file, text in written.items():
            (GOLDEN / name / file).write_text(text)
    assert written == {file.name: file.read_text() for file in (GOLDEN / name).iterdir()}
    assert not differences(model, *_loaded(folder, x))


def _loaded(folder: Path, x: Tensor) -> tuple[Any, ...]:
    loaded = lpcompile.load(folder)
    return loaded, ((x,), {}), True, loaded.module


def test_golden_code_passes_ruff() -> None:
    for arguments in (["check"], ["format", "--check"]):
        command = ["ruff", *arguments, "--isolated", "--line-length", "120", str(GOLDEN)]
        run = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr


def test_eighteen_blocks_are_one_class(tmp_path: Path) -> None:
    program = program_of(models.resnet110(), 3, torch.randn(2, 3, 32, 32))
    text = (program.emit(tmp_path / "program") / "stage_1.py").read_text()
    assert text.count("class ") == 2
    assert "for i in range(1, 18)" in text


def test_emitting_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    model, x = gpt()
    program = program_of(model, 2, x)
    first, second = (_bytes(program.emit(tmp_path / name)) for name in ("one", "two"))
    assert first == second
    again = _bytes(lpcompile.load(tmp_path / "one").plan and program.emit(tmp_path / "one", overwrite=True))
    assert again == first


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


# ---- names


class Named(nn.Module):
    """A block whose layer, parameter and buffer have any name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._modules[name] = nn.Linear(4, 4)
        self._parameters[f"{name}w"] = nn.Parameter(torch.randn(4))
        self._buffers[f"{name}b"] = torch.randn(4)

    def forward(self, x: Tensor) -> Tensor:
        layer: Any = self._modules[self.name]
        return x + torch.tanh(layer(x)) * self._parameters[f"{self.name}w"] + self._buffers[f"{self.name}b"]


class Chain(nn.Module):
    def __init__(self, blocks: dict[str, nn.Module]) -> None:
        super().__init__()
        self._modules.update(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self._modules.values():
            x = block(x)  # type: ignore[misc]
        return x


HOSTILE = [
    'x"); open("pwned", "w"); ("', "x'); open('pwned', 'w'); ('", "a\nopen('pwned', 'w')\n", '"""', "'''", "\\", "\\\"",
    "class", "ﬁ", "__private", "self", "torch", "nn", "{0}", "%s", "0", " ", "#", "é", "lam", "x", "print",
]  # fmt: skip


def test_names_of_modules_cannot_inject_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model, x = Chain({name: Named(name) for name in HOSTILE}), torch.randn(3, 4)
    folder = program_of(model, 3, x).emit("program")
    loaded = lpcompile.load(folder)
    assert list(loaded.state_dict()) == list(model.state_dict())
    assert not differences(model, loaded, ((x,), {}), True, loaded.module)
    assert not (tmp_path / "pwned").exists()


def test_a_constant_is_quoted(tmp_path: Path) -> None:
    class Constants(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.fc(x).masked_fill(x > float("inf"), float("-inf"))
            return torch.einsum("ij,kj->ik", x, x[..., None, :2:1].sum(-2).repeat(1, 2)).to(torch.float64)

    model, x = Constants(), torch.randn(3, 4)
    loaded = lpcompile.load(program_of(model, 1, x).emit(tmp_path / "program"))
    assert not differences(model, loaded, ((x,), {}), True, loaded.module)


# ---- what is kept


@dataclass
class Answer:
    logits: Tensor
    parts: dict[str, Any]


class Odd(nn.Module):
    """Tied and frozen parameters, a buffer outside the state_dict, a layer in eval mode, no_grad, a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4).eval()
        self.body = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.5)) for _ in range(3)])
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.body[0][0].weight.requires_grad_(False)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)
        self.register_buffer("spare", torch.tensor([1, 2]), persistent=False)

    def forward(self, ids: Tensor, *, shift: Tensor | None = None, flag: bool = True) -> Answer:
        x = self.norm(self.embed(ids).mean(1)) * self.scale
        for block in self.body:
            x = x + block(x)
        with torch.no_grad():
            size = x.norm(dim=-1, keepdim=True)
        x = x / (size + 1) if shift is None else x / (size + 1) + shift
        return Answer(self.head(x), {"size": size, "flag": flag, "pair": (x, None)})


def odd_program() -> tuple[Odd, Program, tuple[Any, dict[str, Any]]]:
    torch.manual_seed(0)
    model = Odd()
    inputs = ((torch.randint(0, 7, (5, 3)),), {"shift": torch.randn(5, 4)})
    return model, program_of(model, 3, *inputs[0], **inputs[1]), inputs


def test_load_gives_the_program_back(tmp_path: Path) -> None:
    model, program, inputs = odd_program()
    loaded = lpcompile.load(program.emit(tmp_path / "program"))
    assert loaded.plan == program.plan
    assert not loaded.module.get_submodule("norm").training
    assert not differences(model, loaded, inputs, True, loaded.module)
    assert [stage_io(s) for s in loaded.stages] == [stage_io(s) for s in program.stages]
    names = [(n, p.requires_grad) for n, p in model.named_parameters()]
    assert [(n, p.requires_grad) for n, p in loaded.named_parameters()] == names
    first, last = loaded.stages[0].embed.weight, loaded.stages[-1].head.weight  # type: ignore[union-attr]
    assert first is last
    answer = loaded(*inputs[0], **inputs[1])
    assert type(answer) is Answer
    assert answer.parts["flag"] is True


def test_a_loaded_program_says_what_it_cannot_do(tmp_path: Path) -> None:
    _, program, (args, kwargs) = odd_program()
    loaded = lpcompile.load(program.emit(tmp_path / "program"))
    with pytest.raises(InputError, match="'shift' was given when the model was captured"):
        loaded(*args)
    with pytest.raises(InputError, match="a loaded program runs as it was compiled"), torch.autocast("cpu"):
        loaded(*args, **kwargs)
    with pytest.raises(AttributeError, match="no undivided graph"):
        _ = loaded.captured.graph


def test_a_loaded_program_follows_its_module(tmp_path: Path) -> None:
    """`to` makes new buffers, `load_state_dict` new values: the stages see them."""
    model, program, (args, kwargs) = odd_program()
    loaded = lpcompile.load(program.emit(tmp_path / "program"))
    for m in (model, loaded):
        m.to(torch.float64)
    state = {k: v + 1 if v.is_floating_point() else v for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    loaded.load_state_dict(state)
    kwargs = {"shift": kwargs["shift"].double()}
    model.eval()
    loaded.eval()
    out = (
        loaded._lp_done[0]
        ._lp.trees[False]
        .unflatten(  # type: ignore[index]
            lpcompile.passes.split.gate.staged(_refreshed(loaded), [*args, *kwargs.values()], 3)  # type: ignore[attr-defined]
        )
    )
    assert torch.equal(out.logits, model(*args, **kwargs).logits)


def _refreshed(program: Program) -> Any:
    for stage in program.stages:
        stage._lp_refresh()
    return program.stages


@pytest.mark.parametrize("form", ["derived", "tied", "recursive-shared"])
def test_auxnets_are_files_too(tmp_path: Path, form: str) -> None:
    """With their own weights, their stage's, or weights that they share."""
    x = torch.randn(2, 3, 32, 32)
    options: dict[str, Any] = {"cost": "flops", "gate": False, "aux": form, "aux_init": "copy"}
    program = parallelize(models.resnet20(), 3, example_inputs=x, **options)
    loaded = lpcompile.load(program.emit(tmp_path / "program"))
    assert (tmp_path / "program" / "auxnet_0.py").read_text().startswith('"""AuxNet 0 of ResNet')
    assert torch.equal(loaded.auxnets[0](x), program.auxnets[0](x))
    stage, aux = (dict(m.named_parameters()) for m in (loaded.stages[0], loaded.auxnets[0]))
    assert aux and all((tensor is stage[name]) == (form == "tied") for name, tensor in aux.items())
    other = dict(loaded.auxnets[1].named_parameters())
    assert all((other.get(name) is tensor) == (form == "recursive-shared") for name, tensor in aux.items())


@pytest.mark.parametrize("ranks", [1, 2])
def test_run_py_trains_the_folder(tmp_path: Path, ranks: int) -> None:
    """In one process, and as torchrun starts it: one stage a process."""
    program = parallelize(models.resnet20(), 2, example_inputs=torch.randn(4, 3, 8, 8), cost="flops", gate=False)
    folder = program.emit(tmp_path / "program")
    launch = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = subprocess.run(
        [sys.executable, *launch, str(folder / "run.py"), "--lr", "0.01"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("loss ") == 5
    trained = models.resnet20()
    trained.load_state_dict(load_file(folder / "trained.safetensors"), strict=True)
    assert int(trained.bn1.num_batches_tracked) >= 5


# ---- refusals


class Local(nn.Linear):
    """A layer that importing finds, with an attribute that is no data."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


def test_what_cannot_be_written_is_refused_with_a_remedy(tmp_path: Path) -> None:
    x = torch.randn(2, 4)

    class Inside(nn.Linear):
        pass

    layer = Local(4, 4)
    layer.lock = object()  # type: ignore[assignment]
    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda *_: None)
    cases = {
        "made inside a function.*define the class at the top level": Inside(4, 4),
        r"bad.*attribute lock is a builtins.object object; make lock a plain value": layer,
        "bad.*has hooks.*remove them before emit": hooked,
    }
    for message, bad in cases.items():
        program = program_of(Chain({"good": nn.Linear(4, 4), "bad": bad}), 1, x)
        with pytest.raises(EmitError, match=message):
            program.emit(tmp_path / "program")
        assert list(tmp_path.iterdir()) == []  # nothing half written


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    with torch.device("meta"):
        program = program_of(nn.Sequential(nn.Linear(4, 4)), 1, torch.randn(2, 4))
    with pytest.raises(EmitError, match="has no values"):
        program.emit(tmp_path / "program")


def test_only_a_folder_of_its_own_is_replaced(tmp_path: Path) -> None:
    program = program_of(nn.Sequential(nn.Linear(4, 4)), 1, torch.randn(2, 4))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    (tmp_path / "file").write_text("")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="not written by emit"):
            program.emit(tmp_path / "mine", overwrite=overwrite)
    with pytest.raises(UsageError, match="is a file"):
        program.emit(tmp_path / "file")
    program.emit(tmp_path / "program")
    with pytest.raises(UsageError, match="overwrite=True"):
        program.emit(tmp_path / "program")
    (tmp_path / "program" / "extra.txt").write_text("")
    program.emit(tmp_path / "program", overwrite=True)
    assert not (tmp_path / "program" / "extra.txt").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "mine", "program"]


def test_load_checks_that_the_folder_is_whole(tmp_path: Path) -> None:
    program = program_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), 2, torch.randn(2, 4))

    def broken(change: Callable[[Path], Any]) -> Path:
        folder = program.emit(tmp_path / f"program_{len(list(tmp_path.iterdir()))}")
        change(folder)
        return folder

    def version(folder: Path) -> None:
        data = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps({**data, "version": 99}))

    def other_weights(folder: Path) -> None:
        names = [folder / "weights" / f"stage_{k}.safetensors" for k in (0, 1)]
        names[0].write_bytes(names[1].read_bytes())

    cases: dict[str, Callable[[Path], Any]] = {
        r"stage_1.py is missing; emit the program again": lambda f: (f / "stage_1.py").unlink(),
        r"stage_0.safetensors is missing": lambda f: (f / "weights" / "stage_0.safetensors").unlink(),
        r"has version 99 of the format, this lpcompile reads 1": version,
        r"model.json is not JSON": lambda f: (f / "model.json").write_text("{"),
        r"weights of stage_0 .* cannot be read": lambda f: (f / "weights" / "stage_0.safetensors").write_text("?"),
        r"weights/stage_0 has 2\.\w+ as .*, stage_0.py has no such name": other_weights,
    }
    for message, change in cases.items():
        with pytest.raises(EmitError, match=message):
            lpcompile.load(broken(change))
    with pytest.raises(UsageError, match="is not a folder"):
        lpcompile.load(tmp_path / "nowhere")


# ---- the command


def test_the_command_emits_with_given_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = models.resnet20()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    command = ["emit", "resnet20", "-K", "2", "--cost", "flops", "--batch", "2", "-o", str(tmp_path / "program")]
    assert main([*command, "--weights", str(tmp_path / "weights.pt")]) == 0
    assert "written to" in capsys.readouterr().out
    loaded = lpcompile.load(tmp_path / "program")
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "wrong.pt")
    assert main([*command, "--force", "--weights", str(tmp_path / "wrong.pt")]) == 2
    assert "does not fit ResNet" in capsys.readouterr().err
