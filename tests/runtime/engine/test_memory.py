"""What memory figures count."""

from __future__ import annotations

import torch.nn.functional as F

from lpcompile.runtime.engine import memory
from tests.runtime.engine.training import data
from tests.runtime.small import compiled, norm_mlp, sgd


def test_a_trace_weighs_what_graphs_keep():
    """Two micro-batches, one graph at a time: half of what a whole batch keeps."""
    kept = {}
    for method, micro in (("penalty", 1), ("multiplier", 2)):
        program = compiled(norm_mlp(), 2, data()[0][0])
        trainer = program.trainer(F.cross_entropy, optimizer=sgd, method=method, micro=micro, trace=True)
        trainer.fit(data(4))
        kept[method] = [memory.of(w)["activations"] for w in trainer.workers]
    assert all(0.4 * a < b < 0.6 * a for a, b in zip(kept["penalty"], kept["multiplier"], strict=True)), kept
