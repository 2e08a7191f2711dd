"""A trainer's state under the model's own names, independent of the assignment of stages to ranks.

"model/conv1.weight" is a parameter, "optimizer/conv1.weight/momentum_buffer" its optimizer state. The state of a rank
or boundary (AuxNets, stores, random streams, schedulers) stays with its rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lpcompile.runtime.checkpoint import plain
from lpcompile.runtime.checkpoint import state as states
from lpcompile.runtime.engine import phases
from lpcompile.runtime.methods.recipe import recipe_text

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine
    from lpcompile.runtime.engine.worker import Worker

MODEL, OPTIMIZER, AVERAGE = "model/", "optimizer/", "average/"
SHARED = ("steps", "slot", "phases", "seen", "violation_at_start")


def state(trainer: Engine) -> dict[str, Any]:
    """A trainer at rest: its state with parameters and optimizer state in "model" by name, the rest by rank."""
    found = states.own_state(trainer)
    model: dict[str, Tensor] = {}
    ranks: dict[int, dict[str, Any]] = {}
    for w in trainer.workers:
        own = dict(found["ranks"][w.rank])
        model |= {MODEL + name: t for name, t in own.pop("stage").items() if isinstance(t, Tensor)}
        updater = dict(own["updater"])
        updater["optimizers"] = dict(updater["optimizers"])
        if "stage" in updater["optimizers"]:
            kept, updater["optimizers"]["stage"] = _take_apart(trainer, w, updater["optimizers"]["stage"])
            model |= kept
        prefix = f"{w.rank} "
        own["updater"] = updater
        own["schedulers"] = {n: s for n, s in found["schedulers"].items() if n.startswith(prefix)}
        ranks[w.rank] = own
    if trainer.average is not None:
        model |= {AVERAGE + name: t for name, t in trainer.average.state().items()}
    return {**{key: found[key] for key in SHARED}, "model": model, "ranks": ranks}


def tensors(trainer: Engine) -> dict[str, Tensor]:
    """Weights, buffers and the stages' optimizer state in this process, by the names that a checkpoint gives them."""
    given, nets = state(trainer), ("auxnets", "kappanets", "heads", "loss")
    ranks = [plain.flat({n: own[n] for n in nets}, f"rank {rank}")[0] for rank, own in given["ranks"].items()]
    found: dict[str, Tensor] = dict(given["model"])
    for mine in ranks:
        found |= mine
    return found


def _names(trainer: Engine, w: Worker) -> list[str | None]:
    """The model's names of the parameters that the stage's optimizer has, in its order; None for a loss's own."""
    by_id = {id(p): name for name, p in trainer.program.module.named_parameters()}
    by_id |= {id(p): name for name, p in w.stage.module.named_parameters()}
    return [by_id.get(id(p)) for p in w.updater.parameters]


def _take_apart(trainer: Engine, w: Worker, given: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Optimizer state of named parameters as named tensors, and the rest of it."""
    kept: dict[str, Tensor] = {}
    rest: dict[int, Any] = {}
    names = _names(trainer, w)
    for i, slots in given["state"].items():
        name = names[i]
        rest[i] = {}
        for slot, value in slots.items():
            if isinstance(value, Tensor) and name is not None:
                kept[f"{OPTIMIZER}{name}/{slot}"] = value
            else:
                rest[i][slot] = value
    return kept, {**given, "state": rest}


def wanted(trainer: Engine, saved: Iterable[str]) -> list[str]:
    """The saved names that belong to this process's stages."""
    own: set[str] = set()
    for w in trainer.workers:
        stage = [name for name, t in w.stage.module.state_dict().items() if isinstance(t, Tensor)]
        own |= {MODEL + name for name in stage}
        own |= {AVERAGE + name for name in stage if trainer.average is not None}
        own |= {f"{OPTIMIZER}{name}" for name in _names(trainer, w) if name is not None}
    return [name for name in saved if name in own or name.rpartition("/")[0] in own]


def load(trainer: Engine, given: dict[str, Any]) -> None:
    """Load what `state` gave, on the same plan."""
    ranks: dict[int, dict[str, Any]] = {}
    schedulers: dict[str, Any] = {}
    asked, now = trainer.asked, states.own_state(trainer)
    for w in trainer.workers:
        own = _filled(given["ranks"][w.rank], now, w)
        schedulers |= own.pop("schedulers")
        own["stage"] = _stage_state(w, given["model"])
        optimizers = own["updater"]["optimizers"]
        if "stage" in optimizers:
            optimizers["stage"] = _put_together(trainer, w, optimizers["stage"], given["model"])
        ranks[w.rank] = own
    trainer.flush()
    states.load_own_state(trainer, {**{k: given[k] for k in SHARED}, "schedulers": schedulers, "ranks": ranks})
    _load_average(trainer, given["model"])
    if given["phases"]["asked"] != recipe_text(asked):
        trainer.switch(asked)


def _filled(given: dict[str, Any], now: dict[str, Any], w: Worker) -> dict[str, Any]:
    """Saved state, completed by the current state of parts that the saved method did not use (AuxNets under `bp`)."""
    mine, own = now["ranks"][w.rank], dict(given)
    for key in ("auxnets", "kappanets", "heads"):
        own[key] = {**mine[key], **given.get(key, {})}
    optimizers = {**mine["updater"]["optimizers"], **given["updater"]["optimizers"]}
    own["updater"] = {**given["updater"], "optimizers": optimizers}
    schedulers = {n: s for n, s in now["schedulers"].items() if n.startswith(f"{w.rank} ")}
    own["schedulers"] = {**schedulers, **given["schedulers"]}
    if len(given["gradients"]) != len(mine["gradients"]):
        own["gradients"] = mine["gradients"]
    return own


def load_elsewhere(trainer: Engine, given: dict[str, Any], rank0: Any) -> str:
    """Load the state that does not depend on the plan; gives the names of the rest."""
    trainer.flush()
    trainer.steps = given["steps"]
    for w in trainer.workers:
        w.stage.module.load_state_dict(_stage_state(w, given["model"]), strict=True)
        if w.updater.optimizer is not None:
            own = w.updater.optimizer.state_dict()
            own["state"] = {i: {} for i in range(len(w.updater.parameters))}
            w.updater.optimizer.load_state_dict(_put_together(trainer, w, own, given["model"]))
    _load_average(trainer, given["model"])
    _load_schedulers(trainer, rank0)
    trainer.at = phases.Position()  # AuxNets are new
    trainer.switch(trainer.asked)
    return "heads, AuxNets and their optimizers, stored λ and κ, an adaptive β, random streams"


def _load_average(trainer: Engine, model: dict[str, Tensor]) -> None:
    """The saved average of the weights; after the weights, from which it starts where none was saved."""
    if trainer.average is not None:
        saved = {name: t for name, t in model.items() if name.startswith(AVERAGE)}
        trainer.average.load({name.removeprefix(AVERAGE): t for name, t in saved.items()})


def _load_schedulers(trainer: Engine, rank0: Any) -> None:
    """All ranks have the same schedule: load rank 0's first scheduler into each."""
    kept = next((v for k, v in rank0["items"] if k == "schedulers"), None)
    first = kept["items"][0][1] if kept and kept["items"] else None
    if first is None or plain.names(first):
        return
    for scheduler in trainer.schedulers.values():
        states.load_scheduler(scheduler, plain.nested(first, {}))
        for group, lr in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group["lr"] = lr


def _stage_state(w: Worker, model: dict[str, Tensor]) -> dict[str, Any]:
    own = w.stage.module.state_dict()
    return {name: model.get(MODEL + name, own[name]) for name in own}


def _put_together(trainer: Engine, w: Worker, given: dict[str, Any], model: dict[str, Tensor]) -> dict[str, Any]:
    found: dict[int, Any] = {i: dict(slots) for i, slots in given["state"].items()}
    at = {f"{OPTIMIZER}{name}": i for i, name in enumerate(_names(trainer, w)) if name is not None}
    for full, tensor in model.items():
        parameter, _, slot = full.rpartition("/")
        if parameter in at:
            found.setdefault(at[parameter], {})[slot] = tensor
    return {**given, "state": {i: slots for i, slots in found.items() if slots}}
