"""One handler for each instruction: `handler(worker, instruction, slot)`. Messages are the executor's own.

stage: the rank's own stage. boundary: λ, ψ, κ and AuxNets. end_of_step: gradients and optimizers. Heads are in
`runtime.penalty`, offers and draws in `runtime.comm`, weight stashing in `versions`.

Imports core and the other rooms of the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lpcompile.core.schedule import Instruction
from lpcompile.runtime.comm import buffer
from lpcompile.runtime.engine import versions
from lpcompile.runtime.engine.handlers import boundary, end_of_step, stage
from lpcompile.runtime.engine.worker import Worker
from lpcompile.runtime.penalty import heads

Handler = Callable[[Worker, Instruction, int], Iterator[None] | None]  # the iterator yields while the rank must wait

HANDLERS: dict[str, Handler] = {
    "stash": versions.stash,
    "predict": versions.predict,
    "forward": stage.forward,
    "replay": stage.replay,
    "backward": stage.backward,
    "backward_input": stage.backward_input,
    "backward_weight": stage.backward_weight,
    "head": heads.head,
    "offer": buffer.offer,
    "draw": buffer.draw,
    "aux_forward": boundary.aux_forward,
    "recall": boundary.recall,
    "penalize": boundary.penalize,
    "kappa": boundary.kappa,
    "correct": boundary.correct,
    "distil": boundary.distil,
    "store": boundary.store,
    "multiply": boundary.multiply,
    "average": end_of_step.average,
    "tied": end_of_step.tied,
    "norm": end_of_step.norm,
    "step": end_of_step.step,
}
