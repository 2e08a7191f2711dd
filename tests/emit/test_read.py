"""A loaded program is the program that was emitted, and a damaged folder is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lpcompile
from lpcompile import EmitError, InputError, Program, UsageError, models, parallelize
from lpcompile.cli.main import main
from lpcompile.emit.support import load_stages
from lpcompile.passes.split.gate import staged
from lpcompile.passes.split.split import stage_io
from lpcompile.zoo.check import differences
from tests.emit.programs import program_of


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
    modes = [{n: m.training for n, m in net.named_modules() if n} for p in (loaded, program) for net in p.auxnets]
    assert modes[: len(modes) // 2] == modes[len(modes) // 2 :]
    assert [stage_io(s) for s in loaded.stages] == [stage_io(s) for s in program.stages]
    names = [(n, p.requires_grad) for n, p in model.named_parameters()]
    assert [(n, p.requires_grad) for n, p in loaded.named_parameters()] == names
    first, last = loaded.stages[0].embed.weight, loaded.stages[-1].head.weight  # type: ignore[union-attr]
    assert first is last
    answer = loaded(*inputs[0], **inputs[1])
    assert type(answer) is Answer
    assert answer.parts["flag"] is True


class Listed(nn.Module):
    """A block that holds its layers twice, by name and in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.all = nn.Sequential(self.lin, nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.all(x)
        return out


class HoldsItsEncoder(nn.Module):
    """A decoder that holds the encoder of its model: aliases below an alias."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(*[Listed() for _ in range(4)])
        self.decoder = nn.Module()
        self.decoder.encoder, self.decoder.last = self.encoder, nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.decoder.last(self.encoder(x))
        return out


def test_aliases_below_an_alias_are_read_back(tmp_path: Path) -> None:
    model = HoldsItsEncoder()
    program = parallelize(model, 2, example_inputs=torch.randn(4, 4), cost="flops")
    program.emit(tmp_path / "program")
    loaded = lpcompile.load(tmp_path / "program")
    assert list(loaded.state_dict()) == list(model.state_dict())
    assert loaded.module.decoder.encoder is loaded.module.encoder  # type: ignore[union-attr]
    x = torch.randn(4, 4)
    assert torch.equal(loaded(x), model(x))


def test_a_loaded_program_says_what_it_cannot_do(tmp_path: Path) -> None:
    _, program, (args, kwargs) = odd_program()
    loaded = lpcompile.load(program.emit(tmp_path / "program"))
    with pytest.raises(InputError, match="'shift' was given when the model was captured"):
        loaded(*args)
    with pytest.raises(InputError, match="a loaded program runs as it was compiled"), torch.autocast("cpu"):
        loaded(*args, **kwargs)
    with pytest.raises(AttributeError, match="no undivided graph"):
        _ = loaded.captured.graph
    with pytest.raises(UsageError, match="is not emitted again: copy its folder"):
        loaded.emit(tmp_path / "again")


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
    outputs = staged(_refreshed(loaded), [*args, *kwargs.values()], 3)
    out = loaded.captured._lp.trees[False].unflatten(outputs)
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


def test_load_checks_that_the_folder_is_whole(tmp_path: Path) -> None:
    program = program_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), 2, torch.randn(2, 4))

    def broken(change: Callable[[Path], Any]) -> Path:
        folder = program.emit(tmp_path / f"program_{len(list(tmp_path.iterdir()))}")
        change(folder)
        return folder

    def version(folder: Path) -> None:
        data = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps({**data, "version": 99}))

    def edited(file: Path, old: str, new: str) -> None:
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    def other_weights(folder: Path) -> None:
        names = [folder / "weights" / f"stage_{k}.safetensors" for k in (0, 1)]
        names[0].write_bytes(names[1].read_bytes())

    def folder_instead(folder: Path) -> None:
        (folder / "stage_0.py").unlink()
        (folder / "stage_0.py").mkdir()

    cases: dict[str, Callable[[Path], Any]] = {
        r"stage_1.py is missing; emit the program again": lambda f: (f / "stage_1.py").unlink(),
        r"stage_0.safetensors is missing": lambda f: (f / "weights" / "stage_0.safetensors").unlink(),
        r"has version 99 of the format, this lpcompile reads 1": version,
        r"model.json is not JSON": lambda f: (f / "model.json").write_text("{"),
        r"model.json is not JSON \(maximum recursion depth": lambda f: (f / "model.json").write_text("[" * 100_000),
        r"stage_0.py is missing \(IsADirectoryError": folder_instead,
        r"weights/stage_0.safetensors has 1 bytes instead of": lambda f: (
            f / "weights" / "stage_0.safetensors"
        ).write_text("?"),
        r"weights/stage_0.safetensors has another SHA-256": other_weights,
        r"schedule.json has \d+ bytes instead of": lambda f: (f / "schedule.json").write_text("{}"),
        r"model.json has another SHA-256 than when it was written": lambda f: edited(
            f / "model.json", '"notes"', '"nOtes"'
        ),
        r"stage_1.py has \d+ bytes instead of \d+ \(AttributeError": lambda f: (f / "stage_1.py").write_text(""),
        r"code in .* cannot be imported \(NameError": lambda f: edited(f / "stage_0.py", "nn.Linear(", "mm.Linear("),
    }
    for message, change in cases.items():
        with pytest.raises(EmitError, match=message):
            lpcompile.load(broken(change))
    with pytest.raises(UsageError, match="is not a folder"):
        lpcompile.load(tmp_path / "nowhere")


def test_a_flipped_bit_in_the_weights_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = program_of(nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))), 2, torch.randn(2, 4))
    folder = program.emit(tmp_path / "emitted")
    assert main(["checkpoint", "verify", str(folder)]) == 0
    file = folder / "weights" / "stage_1.safetensors"
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
    with pytest.raises(EmitError, match=r"is damaged: weights/stage_1.safetensors has another SHA-256 .* emit the"):
        lpcompile.load(folder)
    with pytest.raises(ValueError, match=r"stage_1.safetensors is damaged: it has another SHA-256"):
        load_stages(folder)
    assert main(["checkpoint", "verify", str(folder)]) == 1
    assert "damaged: weights/stage_1.safetensors" in capsys.readouterr().out


class FrozenNorm(nn.Module):
    """Its own `train` keeps BatchNorm in evaluation mode, as in detection models."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *[nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1)) for _ in range(3)]
        )

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.body(x)
        return found


def test_a_models_own_train_that_keeps_layers_frozen_holds_after_loading(tmp_path: Path) -> None:
    model = FrozenNorm().train()
    program = program_of(model, 2, torch.randn(5, 4))
    program.emit(tmp_path / "out")
    again = lpcompile.load(tmp_path / "out")
    for mode in (False, True):
        model.train(mode)
        again.train(mode)
        flags = [{p: m.training for p, m in each.named_modules()} for each in (model, again.module)]
        assert flags[0] == flags[1]
    before = again.module.get_buffer("body.0.1.running_mean").clone()
    again(torch.randn(5, 4))
    assert torch.equal(again.module.get_buffer("body.0.1.running_mean"), before)


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_the_older_norms_of_weights_are_emitted(tmp_path: Path) -> None:
    old = nn.utils

    def block() -> nn.Sequential:
        spectral = old.spectral_norm(nn.ConvTranspose1d(4, 4, 1), n_power_iterations=2)
        whole = old.weight_norm(nn.Conv1d(4, 4, 1, bias=False), dim=None)
        return nn.Sequential(old.weight_norm(nn.Conv1d(4, 4, 3, padding=1)), nn.Tanh(), spectral, whole)

    torch.manual_seed(0)
    model, x = nn.Sequential(*[block() for _ in range(4)]), torch.randn(2, 4, 8)
    program_of(model, 2, x).emit(tmp_path / "p")
    assert "nn.utils.weight_norm(nn.Conv1d(4, 4, 3, padding=1))" in (tmp_path / "p/stage_0.py").read_text()
    again = lpcompile.load(tmp_path / "p")
    for _ in range(2):
        assert torch.equal(again.eval()(x), model.eval()(x))
        for mine in (model.train(), again.train()):
            optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
            mine(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        state, loaded = model.state_dict(), again.module.state_dict()
        assert state.keys() == loaded.keys() and all(torch.equal(loaded[name], state[name]) for name in state)
    with pytest.raises(EmitError, match="it has hooks"):
        model[0][0].register_forward_hook(lambda *_: None)
        program_of(model, 2, x).emit(tmp_path / "hooked")
