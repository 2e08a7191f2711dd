"""What a run says of itself: the metrics of a step in this process, and what runs from here on."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from lpcompile.core.staleness import delay_text
from lpcompile.runtime.health import collapse

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine


def of_step(engine: Engine, begin: float) -> dict[str, Any]:
    """Loss, violations, β, time and bytes of the step that began at `begin`; values that are not finite are refused."""
    found: dict[str, Any] = {"step": engine.steps, "method": engine.method.name}
    if len(engine.recipe) > 1:
        found["phase"] = f"{engine.at.index + 1} of {len(engine.recipe)}: {engine.recipe[engine.at.index]}"
    if engine.at.exact:
        found["exact steps"] = engine.at.exact
    for w in engine.workers:
        for name, value in w.take_metrics().items():
            boundary = int(name.split()[1]) if name.startswith("violation") else None
            if not math.isfinite(value):
                collapse.not_finite(name.split()[0], value, w, boundary, engine.steps)
            found[name] = value
        above = w.rank + 1  # the rank below a boundary weighs it in any case
        if above in w.betas and engine.method.aux and not engine.method.exact:
            found[f"beta {above}"] = float(w.betas[above].at(engine.steps))
    found["step ms"] = 1e3 * (time.perf_counter() - begin)
    if engine.distributed:
        found["wait ms"] = found[f"wait ms {engine.rank}"] = 1e3 * engine.workers[0].waited
    found["bytes"] = sum(w.sent for w in engine.workers)
    for w in engine.workers:
        w.waited, w.sent = 0.0, 0
    return found


def method_text(engine: Engine) -> str:
    """The method, its micro-batches, how late its gradients are, and the parameters that it adds in this process."""
    nets = (*engine.auxnets.values(), *(h.net for h in engine.heads.values())) if engine.method.has_aux else ()
    extra = sum({p: p.numel() for net in nets for p in net.module.parameters()}.values())
    cut = f"{engine.micro} micro-batches a step" if engine.micro > 1 else "the whole batch at once"
    text = f"{engine.method.name}: {cut}, {delay_text(engine.schedule, engine.method)}"
    return f"{text}, {extra:,} extra parameters" if extra else text
