"""What the ranks of the campaign do: train a small model with checkpoints, and send one signal at one moment.

The moment is a number of notes on the board, so that it may be any instruction, and any phase outside of steps.
Run as a script it is a rank of torchrun.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset

from lpcompile.runtime.launch import board, launch
from lpcompile.runtime.loop.loop import run
from lpcompile.runtime.loop.options import LoopOptions
from lpcompile.runtime.methods import METHODS
from tests.runtime.small import any_auxnets, compiled, norm_mlp

OPTIONS: dict[str, dict[str, Any]] = {"1f1b": {"micro": 4}, "zb": {"micro": 4}, "multiplier": {"micro": 2}}
EPOCHS = 2  # of four steps
RESULT = "result.safetensors"


@dataclass(frozen=True)
class Work:
    """One run: the method, its folder, and when which rank sends which signal to whom ("" for nobody)."""

    method: str
    K: int
    folder: str
    timeout: float
    resume: bool = False
    rank: int = 0
    note: int = 0
    victim: str = ""  # rank, launcher, server
    signal: str = "SIGKILL"
    text: str = ""  # instead of the note's number: the second note that begins so, or the only one


def adam(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, 0.01)


def work(spec: Work) -> int:
    """One rank's run; gives how many notes it wrote on its board."""
    rank = dist.get_rank()
    mine = board.own
    assert mine is not None
    Path(spec.folder, f"pid{rank}").write_text(f"{os.getpid()} {os.getppid()}")
    counted = _arm(mine, spec if spec.victim and rank == spec.rank else None)
    torch.manual_seed(5)
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(32, 6, generator=g), torch.randint(0, 3, (32,), generator=g)
    loader = DataLoader(TensorDataset(x, y, torch.arange(32)), 8, shuffle=True)
    with board.away(0, "compiling the model"):
        planned = {"method": spec.method} if METHODS[spec.method].chunks > 1 else {}
        program = compiled(norm_mlp(dropout=0.1), spec.K, x[:8], **planned)
    options = OPTIONS.get(spec.method, {})
    trainer = program.trainer(
        F.cross_entropy, optimizer=adam, method=spec.method, auxnets=any_auxnets(program, 0), **options
    )
    watch = LoopOptions(
        save=f"{spec.folder}/saved", save_every=2, keep=9, resume=spec.resume, evaluate_every=0, train_batches=0
    )
    run(trainer, loader, EPOCHS, watch=watch)
    state = trainer.state_dict()
    if rank == 0:
        save_file({name: t.clone().contiguous() for name, t in state.items()}, f"{spec.folder}/{RESULT}")
    return len(counted)


def _arm(mine: Any, spec: Work | None) -> list[str]:
    """Count notes; at the note that the work names write down what is about to happen, then send the signal."""
    plain, counted = mine.note, []

    def note(step: int, text: str, mood: int = board.WORKS) -> None:
        plain(step, text, mood)
        counted.append(text)
        if spec is not None and _is_now(spec, counted):
            moment = {"time": time.time(), "step": step, "text": text, "victim": spec.victim, "signal": spec.signal}
            part = Path(spec.folder, "fired.part")
            part.write_text(json.dumps(moment))
            part.rename(Path(spec.folder, "fired"))
            launcher = int(Path(spec.folder, "launcher").read_text())
            target = {"rank": os.getpid(), "server": os.getppid(), "launcher": launcher}[spec.victim]
            os.kill(target, signal.Signals[spec.signal])

    mine.note = note
    return counted


def _is_now(spec: Work, counted: list[str]) -> bool:
    if not spec.text:
        return len(counted) == spec.note
    found = [text for text in counted if text.startswith(spec.text)]
    return counted[-1].startswith(spec.text) and len(found) == (1 if spec.text == "(compiling" else 2)


def as_json(spec: Work) -> str:
    return json.dumps(asdict(spec))


if __name__ == "__main__":
    given = Work(**json.loads(sys.argv[1]))
    launch.pin(int(os.environ["LOCAL_RANK"]))
    launch.join("cpu", given.timeout)
    work(given)
    launch.leave()
