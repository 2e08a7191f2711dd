"""The end of a step on one rank: gradients are unscaled, clipped and applied."""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lpcompile.errors import UsageError

Factory = Callable[[list[nn.Parameter]], Any]  # from parameters to an optimizer
# Lists in a scheduler's state that follow the groups of the stage's weights.
OF_GROUPS = ("base_lrs", "min_lrs", "max_lrs", "_last_lr", "base_momentums", "max_momentums", "lr_lambdas")
GROW_AFTER = 2000  # steps without an overflow after which the loss scale doubles, as in torch.amp.GradScaler


def check_factories(options: dict[str, Any]) -> None:
    """Refuse an optimizer or a scheduler where a function that makes one belongs: every stage needs its own."""
    if options.get("optimizer", check_factories) is None:
        raise UsageError("optimizer is None: give a function, optimizer=lambda parameters: SGD(parameters, 0.1)")
    for name, given in (("optimizer", "parameters"), ("aux_optimizer", "parameters"), ("scheduler", "optimizer")):
        value = options.get(name)
        if value is not None and not callable(value):
            kind = type(value).__name__
            raise UsageError(
                f"{name} is a {kind} object, and every stage needs one of its own: give a function that makes it, "
                f"{name}=lambda {given}: {kind}({given}, ...)"
            )


def made(factory: Callable[[Any], Any], given: Any, name: str) -> Any:
    """What the user's function makes; one without a return, or of other parameters, would train nothing in silence."""
    found = factory(given)
    if not callable(getattr(found, "step", None)):
        raise UsageError(f"{name} gave {found!r}, which has no step(): let the function return what it makes")
    takes = inspect.signature(found.step).parameters.get("closure")
    if takes is not None and takes.default is takes.empty:
        raise UsageError(
            f"{name} gave a {type(found).__name__}, whose step evaluates the loss again by a closure, which a stage "
            f"does not have; use an optimizer that steps from gradients, such as SGD or AdamW"
        )
    if isinstance(found, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise UsageError(
            f"{name} gave ReduceLROnPlateau, which waits for figures of evaluations, and schedulers are stepped after "
            f"every optimizer step; give one that counts steps, or set learning rates in a loop of your own "
            f"(transformers' Trainer and Lightning follow it)"
        )
    if isinstance(found, torch.optim.Optimizer) and isinstance(given, list):
        own = {id(p) for p in given}
        if any(id(p) not in own for group in found.param_groups for p in group["params"]):
            raise UsageError(
                f"{name} gave a {type(found).__name__} of other parameters than those of the stage, with which it was "
                f"called: let it use its argument, {name}=lambda parameters: {type(found).__name__}(parameters, ...)"
            )
    return found


class Updater:
    """The optimizers of a rank: one for its stage (with a loss's own parameters), one for each AuxNet or κ-network.

    scale: the loss scale of float16 autocast, the same on all ranks, 1 otherwise.
    """

    def __init__(self, parameters: list[nn.Parameter], optimizer: Any, scale: float = 1.0) -> None:
        self.parameters, self.optimizer = parameters, optimizer
        self.others: dict[str, tuple[list[nn.Parameter], Any]] = {}
        self.clip = 0.0
        self.scale, self.scaling, self.clean = scale, scale != 1.0, 0
        self.due: set[str] = set()  # optimizers with gradients since their last step
        self.uncounted: set[int] = set()  # tied parameters whose norm another rank counts

    def add(self, name: str, parameters: list[nn.Parameter], factory: Factory) -> None:
        self.others[name] = (parameters, made(factory, parameters, "aux_optimizer") if parameters else None)

    def optimizers(self) -> dict[str, Any]:
        own = {"stage": self.optimizer} if self.optimizer is not None else {}
        return own | {name: optimizer for name, (_, optimizer) in self.others.items() if optimizer is not None}

    def norm(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
        """The norm of the stage's gradients, tied parameters counted on one rank only. dtype: of a stage that has none,
        so that all ranks exchange the same."""
        counted = [p for p in self.parameters if id(p) not in self.uncounted]
        if self.scaling:  # an overflow in an AuxNet counts too
            counted += [p for ps, _ in self.others.values() for p in ps]
        found = total_norm(counted, device)
        return found.to(dtype) if all(p.grad is None for p in counted) else found

    def apply(self, norms: Sequence[Tensor] | None, look: bool = False) -> bool:
        """Step the optimizers that are due. norms: of all ranks' gradients, where known. False after an overflow.

        Gradients that are not finite are refused wherever a norm is computed on the CPU anyway, and by `look`.
        """
        if self.scaling and not self._unscale(norms):
            return False
        if "stage" in self.due and self.optimizer is not None:
            if self.clip or look:
                norm = _over_ranks(norms, 1 / self.scale) if norms else self.norm(self.parameters[0].device)
                _refuse_infinite(self.parameters, norm, look)
            if self.clip:
                clip_(self.parameters, self.clip, norm)
            _complete(self.optimizer)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        for name, (parameters, optimizer) in self.others.items():
            if name in self.due and optimizer is not None:
                if self.clip or look:
                    norm = total_norm(parameters, parameters[0].device)
                    _refuse_infinite(parameters, norm, look)
                if self.clip:
                    clip_(parameters, self.clip, norm)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        self.due.clear()
        if self.scaling:
            self._grow()
        return True

    def _unscale(self, norms: Sequence[Tensor] | None) -> bool:
        assert norms is not None, "loss scaling needs the norm over all ranks"
        every = [*self.parameters, *(p for ps, _ in self.others.values() for p in ps)]
        if not all(bool(n.isfinite()) for n in norms):
            for p in every:
                p.grad = None
            self.due.clear()
            self.scale, self.clean = max(self.scale / 2, 1.0), 0
            return False
        for p in every:
            if p.grad is not None:
                p.grad.div_(self.scale)
        return True

    def _grow(self) -> None:
        self.clean += 1
        if self.clean >= GROW_AFTER:
            self.scale, self.clean = self.scale * 2, 0

    def state(self) -> dict[str, Any]:
        found = {name: optimizer.state_dict() for name, optimizer in self.optimizers().items()}
        return {"optimizers": found, "scale": self.scale, "clean": self.clean}

    def load(self, state: dict[str, Any]) -> None:
        for name, optimizer in self.optimizers().items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.scale, self.clean = state["scale"], state["clean"]


class InfiniteGradientError(Exception):
    """The gradient of this parameter has values that are infinite or undefined."""

    def __init__(self, parameter: nn.Parameter) -> None:
        super().__init__("a gradient is not finite")
        self.parameter = parameter


def _refuse_infinite(parameters: Sequence[nn.Parameter], norm: Tensor, look: bool) -> None:
    """Raise InfiniteGradientError, unless the gradients are finite and only their norm overflows its dtype."""
    if (norm.device.type == "cpu" or look) and not bool(norm.isfinite()):
        for p in parameters:
            if p.grad is not None and not bool(torch.isfinite(p.grad).all()):
                raise InfiniteGradientError(p)


def _complete(optimizer: Any) -> None:
    """Zero momentum for weights whose first gradient comes later than the others', as a tied one's from another rank:
    torch's fused SGD takes momenta of all weights or of none."""
    for group in optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else ():
        moving = [p for p in group["params"] if p.grad is not None] if group["fused"] and group["momentum"] else []
        known = [optimizer.state[p].get("momentum_buffer") is not None for p in moving]
        for p in (p for p, has in zip(moving, known, strict=True) if not has and any(known)):
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)


def total_norm(parameters: Sequence[nn.Parameter], device: torch.device) -> Tensor:
    gradients = [p.grad for p in parameters if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros((), device=device)


def clip_(parameters: Sequence[nn.Parameter], limit: float, norm: Tensor) -> None:
    """Clip gradients in place. On the CPU, skip the pass over all gradients in which torch would multiply them by 1."""
    if norm.device.type == "cpu" and norm + 1e-6 <= limit:  # torch's own factor is 1 then
        return
    torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)


def _over_ranks(norms: Sequence[Tensor], factor: float) -> Tensor:
    """The norm over all ranks, summed in rank order; a single one stays bit for bit as it is."""
    if len(norms) == 1:
        return norms[0] * factor if factor != 1.0 else norms[0]
    together: Tensor = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
    return together * factor


def recipe_facts(updater: Updater, loss_fn: Any, schedulers: dict[str, Any]) -> dict[str, str]:
    """The recipe of a rank for the handshake: loss, optimizers, learning rate and schedule, as far as it has them."""
    facts = {"loss function": callable_name(loss_fn)}
    for name, optimizer in updater.optimizers().items():
        kind = "optimizer" if name == "stage" else f"optimizer of the {name.split()[0]}s"
        facts[kind] = f"{type(optimizer).__name__}({', '.join(f'{k}={v}' for k, v in optimizer.defaults.items())})"
        rates = {str(group["lr"]) for group in optimizer.param_groups} if name == "stage" else set()
        if len(rates) == 1:  # else they depend on the layer, and so on the stage
            facts["learning rate"] = rates.pop()
    if updater.optimizers() and not schedulers:
        facts["scheduler"] = "none"
    for scheduler in list(schedulers.values())[:1]:
        given = scheduler.state_dict()
        if not type(scheduler).__module__.startswith("torch."):  # its containers may follow the stage's groups
            given = {k: v for k, v in given.items() if isinstance(v, (bool, int, float, str))}
        known = _plain(given) | {k: v for k, v in {"functions": _codes(scheduler)}.items() if v}
        facts["scheduler"] = f"{type(scheduler).__name__}({', '.join(f'{k}={v}' for k, v in sorted(known.items()))})"
    return facts


def _plain(value: Any) -> Any:
    """The numbers, texts and containers of them in a scheduler's state, besides what each group of weights has."""
    if isinstance(value, dict):
        kept = {k: _plain(v) for k, v in value.items() if k not in OF_GROUPS}
        return {k: v for k, v in kept.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (bool, int, float, str)) else None


def _codes(scheduler: Any) -> list[str]:
    """The functions of a LambdaLR and the like, by name and code: their own numbers are not in its state."""
    found = set()
    for function in getattr(scheduler, "lr_lambdas", ()):
        code = getattr(function, "__code__", None)
        cells = [c.cell_contents for c in getattr(function, "__closure__", None) or ()]
        numbers = [_plain(v) for v in (*(code.co_consts if code else ()), *cells, getattr(function, "__dict__", {}))]
        found.add(f"{callable_name(function)} {zlib.crc32(repr((code and code.co_code, numbers)).encode()):08x}")
    return sorted(found)


def callable_name(function: Any) -> str:
    """A function, module or partial by its name, the same in all processes."""
    if isinstance(function, functools.partial):
        given = [*map(repr, function.args), *(f"{k}={v!r}" for k, v in function.keywords.items())]
        return f"{callable_name(function.func)}({', '.join(given)})"
    if isinstance(function, nn.Module):
        return str(function)
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}.{kind.__qualname__}"
