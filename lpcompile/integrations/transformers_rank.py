"""`Trainer.train()` by itself: K processes that each make the same Trainer, and what they end with.

The same Trainer: its class with the arguments of `Trainer.__init__`, then what the user's subclass or script has added
or changed since. What rank 0's callbacks have noted is in the user's callbacks in the end.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers

from lpcompile.errors import UsageError
from lpcompile.runtime.comm import pack
from lpcompile.runtime.launch import launch
from lpcompile.runtime.launch.temporary import temporary_folder

if TYPE_CHECKING:
    from lpcompile.integrations.transformers import Trainer
    from lpcompile.runtime.engine.worker import Worker

RANDOM = "lpcompile_random_{}.safetensors"  # of a rank, in a checkpoint
CHANGEABLE = (
    "train_dataset", "eval_dataset", "data_collator", "compute_metrics", "processing_class", "compute_loss_func",
    "preprocess_logits_for_metrics", "optimizer", "lr_scheduler", "label_names",
)  # fmt: skip


def train_on_ranks(trainer: Trainer, resume: Any, options: dict[str, Any]) -> Any:
    """Train on processes of this machine, and leave the weights and the log in `trainer`."""
    from safetensors.torch import load_file

    K, callbacks = trainer.lp_options["K"], trainer.callback_handler.callbacks
    known = {id(callback): i for i, callback in enumerate(trainer.lp_callbacks)}
    given = (type(trainer), trainer.model, trainer.args, trainer.lp_given, trainer.lp_options, _added(trainer),
             [known.get(id(callback), callback) for callback in callbacks], resume, options)  # fmt: skip
    data = pack.dumps(given, "the model, data set or another argument of the Trainer")
    with temporary_folder() as folder:
        file = f"{folder}/model.safetensors"
        output, state, noted = launch.launch(_rank, (data, file), world=K, K=K, device=trainer.args.device.type)
        trainer.model.load_state_dict(load_file(file), strict=False)  # tied weights are there once
    trainer.state, trainer.is_in_train = state, False
    for callback, values in zip(callbacks, noted, strict=True):
        if values is not None:
            vars(callback).update(pack.loads(values))
    return output


def _added(trainer: Trainer) -> dict[str, Any]:
    """Attributes that are the user's own, and those of transformers' that were set after `Trainer.__init__`."""
    now, first = vars(trainer), trainer.lp_first
    changed = {name: now[name] for name in CHANGEABLE if name in now and now[name] is not first.get(name)}
    own = {name for name in now if name not in _of_transformers() and name != "engine" and not name.startswith("lp_")}
    return changed | {name: now[name] for name in own}


@cache
def _of_transformers() -> frozenset[str]:
    """The attributes of transformers.Trainer."""
    return frozenset(re.findall(r"\bself\.(\w+)", inspect.getsource(transformers.Trainer)))


def _rank(data: bytes, file: str) -> Any:
    """One rank: the Trainer again, its training, and the model in a file. Only the first prints."""
    with contextlib.ExitStack() as stack:
        if os.environ["RANK"] != "0":
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        return _trained(data, file)


def _trained(data: bytes, file: str) -> Any:
    from safetensors.torch import save_file

    from lpcompile.integrations.transformers import Trainer

    kind, model, args, given, lp_options, added, callbacks, resume, options = pack.loads(data)
    trainer = kind.__new__(kind)
    Trainer.__init__(trainer, model, args, *given["rest"], **lp_options, **given["options"])
    vars(trainer).update(added)
    made = trainer.callback_handler.callbacks
    trainer.callback_handler.callbacks = [made[c] if isinstance(c, int) else c for c in callbacks]
    output = trainer.train(resume_from_checkpoint=resume, **options)
    if trainer.args.process_index == 0:
        seen: set[int] = set()
        state = {}
        for name, t in trainer.model.state_dict().items():
            if id(t) not in seen and t.data_ptr() not in seen:
                seen.add(t.data_ptr())
                state[name] = t.cpu().contiguous()
        save_file(state, file)
    return output, trainer.state, [_noted(callback) for callback in trainer.callback_handler.callbacks]


def save_random(worker: Worker, folder: str) -> None:
    """Note a rank's random stream in a checkpoint."""
    from safetensors.torch import save_file

    save_file(dict(zip("ab", worker.random or [], strict=False)), Path(folder) / RANDOM.format(worker.rank))


def load_random(worker: Worker, folder: str) -> None:
    from safetensors.torch import load_file

    file = Path(folder) / RANDOM.format(worker.rank)
    if file.exists():  # with another K it may not
        worker.random = [state for _, state in sorted(load_file(file).items())]


def _noted(callback: Any) -> bytes | None:
    """What a user's callback holds; None for transformers' own, and where it cannot be sent."""
    if type(callback).__module__.startswith("transformers."):
        return None
    try:
        return pack.dumps(vars(callback), "a callback")
    except UsageError:
        return None
