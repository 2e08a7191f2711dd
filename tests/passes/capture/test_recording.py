"""What a recording with given outcomes of its draws hands to those that merge it."""

import torch
from torch import nn

from lpcompile.passes.capture.record.recorder import Recorder
from lpcompile.passes.capture.record.shadow import Shadow
from lpcompile.passes.capture.recording import Outcome
from lpcompile.passes.capture.switches import Branches


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if torch.rand([]) < 0.5 else x


def outcome_of(answer: bool) -> Outcome:
    model, x, branches = Skips().train(), torch.randn(2, 4), Branches(lambda k: answer)
    recorder = Recorder(Shadow(model, None, {}), branches=branches)
    return Outcome(recorder, recorder.run([("x", x)], lambda root: root(x)), branches)


def test_an_outcome_has_the_steps_of_its_branch_and_the_flag_that_was_read():
    taken, skipped = outcome_of(True), outcome_of(False)
    assert [sum(n.op == "call_module" for n in o.graph.nodes) for o in (taken, skipped)] == [1, 0]
    for one in (taken, skipped):
        graph, branches = one.drawn
        assert graph is one.recorder.graph and len(branches.flags) == 1 and branches.flags[0] in graph.nodes
