"""What a LightningModule logs and measures in `training_step`, on all ranks.

Only the last rank computes losses. Values that it logs are means over the micro-batches. Metrics of torchmetrics that
training updates are put together over the ranks where they are computed, as under DDP; those that only evaluation
updates are not, for there all ranks have the same outputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor

from lpcompile.runtime.comm import exchange

POSITIONAL = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "enable_graph", "sync_dist")  # of `log`


class Logged:
    """The values that one module logs in a step, and its metrics."""

    def __init__(self, module: Any) -> None:
        from torchmetrics import Metric

        self.module = module
        self.values: list[tuple[str, float | None, dict[str, Any]]] = []
        self.metrics: dict[str, Any] = {name: m for name, m in module.named_modules() if isinstance(m, Metric)}
        self.usual = {name: m.distributed_available_fn for name, m in self.metrics.items()}
        self.counts: dict[str, int] = {}
        for metric in self.metrics.values():
            metric.distributed_available_fn = _never

    def begin(self) -> None:
        """Before a step."""
        self.values.clear()
        self.counts = {name: m._update_count for name, m in self.metrics.items()}

    def share(self, loss: float, last: int, control: Any) -> float:
        """After a step: log on all ranks what the last one would, and give its loss. All ranks call it."""
        updated = [name for name, m in self.metrics.items() if m._update_count != self.counts[name]]
        found = exchange.from_rank([loss, updated, *_means(self.values)], last, control)
        loss, updated, *values = found
        for name in updated:
            metric = self.metrics[name]
            metric.distributed_available_fn = self.usual[name]
            metric._update_count, metric._computed = max(1, metric._update_count), None
        for name, value, options in values:
            logged: Any = value
            if "metric_attribute" in options:
                logged = self.metrics[options["metric_attribute"]]
                logged._forward_cache = None if value is None else torch.tensor(value)
            self.module.log(name, logged, **options)
        return float(loss)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Inside, what the module logs is kept for the end of the step."""
        self.module.log = self._keep
        try:
            yield
        finally:
            del self.module.log

    def _keep(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        given = {**dict(zip(POSITIONAL, args, strict=False)), **options}
        plain = {k: v for k, v in given.items() if isinstance(v, (bool, int, float, str))}
        at = next((path for path, metric in self.metrics.items() if metric is value), None)
        if at is not None:
            value, plain["metric_attribute"] = value._forward_cache, at
        elif hasattr(value, "compute"):
            value = value.compute()
        number = value.detach() if isinstance(value, Tensor) else value
        self.values.append((name, None if number is None else float(number), plain))

    @contextlib.contextmanager
    def untouched(self) -> Iterator[None]:
        """Afterwards metrics, and the lists and dicts of the module, are as they were."""
        names = {n: (*m._defaults, "_update_count", "_computed", "_forward_cache") for n, m in self.metrics.items()}
        states = {n: {a: deepcopy(getattr(self.metrics[n], a)) for a in attributes} for n, attributes in names.items()}
        own = {k: (v, copy(v)) for k, v in vars(self.module).items() if type(v) in (list, dict) and k[0] != "_"}
        try:
            yield
        finally:
            for name, state in states.items():
                for attribute, value in state.items():
                    setattr(self.metrics[name], attribute, value)
            for value, before in own.values():
                value.clear()
                value.extend(before) if isinstance(value, list) else value.update(before)

    def close(self) -> None:
        """Metrics are put together over ranks again, as without lpcompile."""
        for name, metric in self.metrics.items():
            metric.distributed_available_fn = self.usual[name]


def _never() -> bool:
    return False


def _means(values: list[tuple[str, float | None, dict[str, Any]]]) -> list[tuple[str, float | None, dict[str, Any]]]:
    """One value for each name that the micro-batches logged."""
    found: dict[str, list[float]] = {}
    options: dict[str, dict[str, Any]] = {}
    for name, value, given in values:
        found.setdefault(name, []).extend([] if value is None else [value])
        options[name] = given
    return [(name, sum(v) / len(v) if v else None, options[name]) for name, v in found.items()]
