"""run.py, as it lies in an emitted folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._pytree import tree_leaves

from lpcompile import models, parallelize
from lpcompile.emit.run_script import function, mean_square, random_batches
from tests.emit.programs import gpt, program_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("ranks", [1, 2])
def test_run_py_trains_the_folder(tmp_path: Path, ranks: int) -> None:
    """In one process, and as torchrun starts it: one stage a process."""
    program = parallelize(models.resnet20(), 2, example_inputs=torch.randn(4, 3, 8, 8), cost="flops", gate=False)
    folder = program.emit(tmp_path / "program")
    launch = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = subprocess.run(
        [sys.executable, *launch, str(folder / "run.py"), "--lr", "0.01"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("loss ") == 5
    trained = models.resnet20()
    trained.load_state_dict(load_file(folder / "trained.safetensors"), strict=True)
    assert int(trained.bn1.num_batches_tracked) >= 5


def test_a_function_is_found_by_file_and_name(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def loss(output, y):\n    return 7\n")
    assert function(f"{file}:loss")(None, None) == 7
    with pytest.raises(SystemExit, match="has no function 'batches'"):
        function(f"{file}:batches")
    for name in ("loss", "nowhere.py:loss"):
        with pytest.raises(SystemExit, match="give a Python file and a function in it"):
            function(name)


def test_random_batches_are_the_same_on_every_rank_and_fit_the_program() -> None:
    model, ids = gpt()
    program = program_of(model, 1, ids)
    first, second = (list(random_batches(program, steps=2)) for _ in range(2))
    assert len(first) == 2
    for one, other in zip(tree_leaves(first), tree_leaves(second), strict=True):
        assert (one is None and other is None) or torch.equal(one, other)
    assert program(**first[0][0]).shape[:2] == ids.shape


def test_the_mean_square_counts_outputs_with_a_gradient() -> None:
    a, b = torch.tensor([1.0, 3.0], requires_grad=True), torch.tensor([100.0])
    assert mean_square({"a": a, "b": (b, None)}, None) == 5.0
