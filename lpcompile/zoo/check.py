"""One zoo model through everything: ours at K stages against eager, bitwise, and the two peers on the same work.

The comparison here shares no code with the compiler's own gate: it would be no check otherwise.
"""

from __future__ import annotations

import copy
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from lpcompile.compile import parallelize
from lpcompile.errors import LpError, PlanError
from lpcompile.zoo.entry import Inputs, ZooEntry, ZooRow

SEED = 7


def check(entry: ZooEntry, K: int = 4, *, peers: bool = True, emit: bool = False) -> ZooRow:
    """Everything that the zoo table shows of one model. An error of a model or a front end is a result, not raised.

    With `emit` AuxNets and emitted code are checked too; to save time, without the gate and a second batch size.
    """
    if entry.suite == "strangers":
        from lpcompile.zoo.strangers.check import check_stranger

        return check_stranger(entry, K)
    row: ZooRow = {"name": entry.name, "suite": entry.suite}
    try:
        model, make_inputs = entry.build()
        inputs = make_inputs(2)
        row["parameters"] = sum(p.numel() for p in model.parameters())
    except Exception as error:
        return row | {"status": "does not build", "why": short(error)}
    row |= ours(model, inputs, make_inputs, K, emit)
    if peers:
        row["symbolic_trace"] = _verdict(lambda: _symbolic_trace(model, inputs))
        row["pipeline"] = _verdict(lambda: _pipeline(model, inputs, K))
    return row


def ours(model: nn.Module, inputs: Inputs, make_inputs: Callable[[int], Inputs], K: int, emit: bool = False) -> ZooRow:
    start = time.perf_counter()
    row: ZooRow = {}
    args, kwargs = inputs
    compile_ = partial(parallelize, model, example_inputs=args, example_kwargs=kwargs, cost="flops", gate=not emit)
    try:
        try:
            program = compile_(K=K)
        except PlanError as error:
            if error.most is None or error.most < 1:
                raise
            row["fewer"] = str(error)
            program = compile_(K=error.most)
    except LpError as error:
        return row | {"status": "refused", "why": short(error), "seconds": time.perf_counter() - start}
    except Exception as error:
        return row | {"status": "crashed", "why": short(error), "seconds": time.perf_counter() - start}
    row["seconds"] = time.perf_counter() - start
    plan = program.plan
    row |= {"K": plan.K, "imbalance": plan.imbalance, "width": max((len(b.specs) for b in plan.boundaries), default=0)}
    row |= {"notes": list(plan.notes), "batch_free": plan.batch_free}
    try:
        wrong = differences(model, program, inputs)
        if plan.batch_free and not wrong and not emit:
            wrong = [f"at batch 3: {w}" for w in differences(model, program, make_inputs(3), evaluate=False)]
    except LpError as error:
        return row | {"status": "refused", "why": f"at a call: {short(error)}"}
    except Exception as error:
        wrong = [f"{short(error)} when run"]
    if emit:
        from lpcompile.zoo.aux_check import aux_check
        from lpcompile.zoo.emit_check import emit_check

        row |= emit_check(model, program, inputs) | aux_check(model, program, inputs)
    keys = set().union(*(s.state_dict() for s in program.stages))
    if keys != set(model.state_dict()):
        wrong.append(f"stage keys differ: {sorted(keys ^ set(model.state_dict()))[:3]}")
    return row | ({"status": "wrong", "why": "; ".join(wrong[:3])} if wrong else {"status": "exact"})


def differences(
    model: nn.Module,
    other: Callable[..., Any],
    inputs: Inputs,
    evaluate: bool = True,
    owner: nn.Module | None = None,
    seed: int = SEED,
) -> list[str]:
    """Differences in outputs, gradients and buffers after a training step, and in outputs in evaluation.

    `owner` holds the parameters of `other` where they are not the model's.
    """
    found = []
    state = copy.deepcopy(model.state_dict())
    for training in (True, False) if evaluate else (True,):
        for module in (model, owner or model):
            module.train(training)
        left = _step(model, model, inputs, training, state, seed)
        right = _step(owner or model, other, inputs, training, state, seed)
        found += [f"{k} ({'train' if training else 'eval'})" for k in left if not _same(left[k], right.get(k))]
        found += [f"{k} is extra" for k in right if k not in left]
    model.train()
    return found


def _step(
    model: nn.Module, call: Callable[..., Any], inputs: Inputs, training: bool, state: Any, seed: int
) -> dict[str, Any]:
    model.load_state_dict(state, strict=False)
    model.zero_grad(set_to_none=True)
    args, kwargs = copy.deepcopy(inputs)
    seeded(seed)
    with torch.set_grad_enabled(training):
        out = call(*args, **kwargs)
    tensors = tensors_in(out)
    results: dict[str, Any] = {f"output {i}": t.detach().clone() for i, t in enumerate(tensors)}
    if training:
        loss = sum(t.square().mean() for t in tensors if t.requires_grad and t.is_floating_point())
        if isinstance(loss, torch.Tensor):
            loss.backward()  # type: ignore[no-untyped-call]
        results |= {f"gradient of {n}": p.grad for n, p in model.named_parameters()}
    results |= {f"buffer {n}": b.clone() for n, b in model.named_buffers()}
    model.zero_grad(set_to_none=True)
    model.load_state_dict(state, strict=False)
    return results


def seeded(seed: int) -> None:
    """Seed every generator that a forward may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor in nested containers, dataclasses and objects."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors_in(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_in(v)]
    return [t for v in vars(value).values() for t in tensors_in(v)] if hasattr(value, "__dict__") else []


def _same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))


def _bits(t: torch.Tensor) -> torch.Tensor:
    t = t.to_dense() if t.is_sparse else t.resolve_conj()
    return t.contiguous().reshape(-1).view(torch.uint8) if t.numel() else t


# ---- peers


def _verdict(attempt: Callable[[], str]) -> str:
    """'exact' or why not."""
    try:
        return attempt()
    except Exception as error:
        return f"fails: {short(error)}"


def _symbolic_trace(model: nn.Module, inputs: Inputs) -> str:
    traced = torch.fx.symbolic_trace(copy.deepcopy(model).train())
    return _forward_differences(model, traced, traced, inputs)


def _pipeline(model: nn.Module, inputs: Inputs, K: int) -> str:
    from torch.distributed.pipelining import SplitPoint, pipeline

    args, kwargs = inputs
    twin = copy.deepcopy(model).train()
    pipe = pipeline(twin, args, kwargs, split_spec=dict.fromkeys(_split_points(twin, K), SplitPoint.BEGINNING))
    stages = pipe.num_stages
    if stages < 2:
        return "fails: returns a single stage"
    verdict = _forward_differences(model, pipe, pipe.split_gm, inputs)
    return verdict if verdict != "exact" or stages >= K else f"exact, {stages} stages"


def _split_points(model: nn.Module, K: int) -> list[str]:
    """Evenly spaced children of the container with the most parameters below its children."""

    def weight(item: tuple[str, nn.Module]) -> int:
        return sum(p.numel() for p in item[1].parameters())

    containers = [(n, m) for n, m in model.named_modules() if len(list(m.children())) >= K]
    blocks = [c for c in containers if isinstance(c[1], (nn.ModuleList, nn.Sequential))] or containers
    name, best = max(blocks, key=weight)
    children = [n for n, _ in best.named_children()]
    return [f"{name}.{children[len(children) * i // K]}".strip(".") for i in range(1, K)]


def _forward_differences(model: nn.Module, call: Callable[..., Any], owner: nn.Module, inputs: Inputs) -> str:
    """Compare outputs and buffers of one training forward; more is not asked of the peers."""
    twin = copy.deepcopy(model).train()
    args, kwargs = copy.deepcopy(inputs)
    with torch.no_grad():
        torch.manual_seed(SEED)
        left = tensors_in(twin(*args, **kwargs))
        args, kwargs = copy.deepcopy(inputs)
        torch.manual_seed(SEED)
        right = [t for t in pytree.tree_leaves(call(*args, **kwargs)) if isinstance(t, torch.Tensor)]
    if len(left) != len(right) or not all(_same(a, b) for a, b in zip(left, right, strict=True)):
        return "wrong: outputs differ"
    theirs = dict(owner.named_buffers())
    buffers = [n for n, b in twin.named_buffers() if n in theirs and not _same(b, theirs[n])]
    return f"wrong: buffer {buffers[0]} not updated" if buffers else "exact"


def short(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
