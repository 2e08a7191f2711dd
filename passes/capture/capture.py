"""From a model and a batch to a graph.

>>> captured = capture(model, x)
>>> captured(x)                  # bitwise equal to model(x), in the mode the model is in
>>> print(captured.graph)        # layers under their own names, functions in program order

The recorder runs first on fake tensors. A module that cannot be recorded is kept whole and the rest is recorded
again; if that is not enough, forward runs once on the real tensors. Two recordings at different batch sizes free
the graph from the batch size; one in eval mode is kept beside the training graph if the two differ.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from lpcompile.errors import CaptureError, UsageError
from lpcompile.passes.capture import explain
from lpcompile.passes.capture.attempt import Attempt
from lpcompile.passes.capture.attribute_guard import AttributeGuard
from lpcompile.passes.capture.batch_freedom import Freed, free_batch, tie
from lpcompile.passes.capture.captured import Captured, CaptureInfo
from lpcompile.passes.capture.record import input_reads
from lpcompile.passes.capture.record.refusal import Unrecordable
from lpcompile.passes.capture.recording import Again, Recording
from lpcompile.passes.capture.signature import Rebuild, Signature, example_call, make_signature, rebuilder
from lpcompile.passes.graph.batch import Different, batch_size, follow_batch, follow_device, resized, same_graph
from lpcompile.passes.graph.untouched import untouched

FRONT_ENDS = ("auto", "fake", "real", "specialise")


def capture(
    model: nn.Module,
    example_inputs: Any = None,
    example_kwargs: dict[str, Any] | None = None,
    *,
    leaf: Iterable[str | type[nn.Module]] = (),
    concrete_args: dict[str, Any] | None = None,
    front_end: str = "auto",
) -> Captured:
    """Capture `model` as called with the example inputs.

    `leaf` names modules (qualified names or classes) to keep whole. `concrete_args` fixes arguments of forward to
    values that are not tensors. `front_end`: "auto" tries "fake" (fake tensors), then "real" (one forward on the real
    tensors, branches on data kept whole); "specialise" freezes such branches as these inputs take them.
    """
    explain.check_model(model)
    if front_end not in FRONT_ENDS:
        raise UsageError(f"front_end={front_end!r} is not one of {', '.join(FRONT_ENDS)}")
    parameters = inspect.signature(model.forward)
    args, kwargs = example_call(parameters, example_inputs, {**(example_kwargs or {}), **(concrete_args or {})})
    signature = make_signature(model, args, kwargs)
    tensors = signature.flat(args, kwargs)
    attempt = Attempt(model, signature, _leaf_paths(model, leaf), front_end in ("real", "specialise"),
                       front_end == "specialise")  # fmt: skip
    log = logging.getLogger("torch._subclasses.fake_tensor")  # explain.py says the same in words
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with untouched(model):
            return _capture(attempt, tensors, rebuilder(signature), front_end)
    finally:
        log.setLevel(level)


def _capture(attempt: Attempt, tensors: list[torch.Tensor], rebuild: Rebuild, front_end: str) -> Captured:
    batch = batch_size(tensors)
    # Sizes of one are special: broadcasting, squeeze. But a graph with a number of the inputs is for their size.
    start = tensors if batch != 1 or attempt.read_inputs else resized(tensors, 2)
    train = _insist(attempt, start, True, rebuild, front_end)
    if attempt.read_inputs and start is not tensors:
        return _capture(attempt, tensors, rebuild, front_end)
    freed = free_batch(attempt, train, start, True, rebuild)
    device = next((t.device for t in tensors), torch.device("cpu"))
    evaluate = train
    try:
        if train.reads_training:
            evaluate = _insist(attempt, start, False, rebuild, front_end)
            if attempt.read_inputs and start is not tensors:
                return _capture(attempt, tensors, rebuild, front_end)
            if _other_constants(train, evaluate):
                raise Different("evaluation has other constants")
            same_graph(train.graph, evaluate.graph)
            evaluate = train if evaluate.tree.text == train.tree.text else Recording(train.graph, evaluate.tree, {})
    except Different:
        marks = free_batch(attempt, evaluate, start, False, rebuild).marks
        follow_batch(evaluate.graph, marks)
        follow_device(evaluate.graph, device)
        _rename(evaluate, _other_constants(train, evaluate))
        if not marks and (freed.rows or input_reads.checks(evaluate.graph)):
            freed = Freed({})
            tie(train.graph)
    follow_batch(train.graph, freed.marks)
    follow_device(train.graph, device)
    return _assemble(attempt, {True: train, False: evaluate}, freed)


def _insist(
    attempt: Attempt, tensors: list[torch.Tensor], training: bool, rebuild: Rebuild, front_end: str
) -> Recording:
    """Record; keep the innermost module that refuses whole and retry; fall back to real tensors if fake ones fail."""
    for _ in range(64):
        try:
            return attempt.record(tensors, training, rebuild)
        except Again:
            continue
        except Unrecordable as error:
            path = error.path
            if error.drawn and training not in attempt.switching:
                attempt.switching[training] = True
                attempt.choosers += [error.chooser] if error.chooser is not None else []
            elif error.opens and error.opens not in attempt.opened:
                attempt.opened.add(error.opens)
            elif error.stray and not attempt.warmed and not explain.has_meta(attempt.model):
                attempt.warm_caches(tensors, rebuild)
            elif attempt.may_read(error):
                attempt.read_inputs = True
            elif path and path not in attempt.kept_whole:
                for refusal in (error, *error.also):
                    attempt.keep_whole(refusal)
            elif not attempt.real and front_end == "auto" and not explain.has_meta(attempt.model):
                attempt.real = True
                attempt.notes.append(f"recorded on real tensors: {error.reason}{explain.at(error.source)}")
            else:
                raise explain.capture_error(attempt.model, error, tensors, rebuild) from error
    raise CaptureError(f"{type(attempt.model).__name__}: more than 64 modules had to be kept whole; gave up")


def _other_constants(train: Recording, evaluate: Recording) -> list[str]:
    """Constants that have other values in evaluation (random blocks of BigBird)."""
    pairs = [(n, t, train.constants[n]) for n, t in evaluate.constants.items() if n in train.constants]
    return [n for n, a, b in pairs if a is not b and (a.dtype != b.dtype or not (a.is_meta or torch.equal(a, b)))]


def _rename(recording: Recording, constants: list[str]) -> None:
    """Give constants names of their own."""
    for name in constants:
        own = f"{name}_in_evaluation"
        recording.constants[own] = recording.constants.pop(name)
        for node in recording.graph.nodes:
            if node.op == "get_attr" and node.target == name:
                node.target = own


def _state_writes(modes: dict[bool, Recording]) -> set[str]:
    return {name for r in modes.values() for n in r.graph.nodes for name in n.meta.get("state_writes", ())}


def _assemble(attempt: Attempt, modes: dict[bool, Recording], freed: Freed) -> Captured:
    model = attempt.model
    state: dict[str, Any] = {}
    for recording in modes.values():
        for node in recording.graph.nodes:
            if node.op == "call_module" or (node.op == "get_attr" and node.meta["spec"] is None):
                state[node.target] = model.get_submodule(node.target)
        state.update(recording.constants)
        recording.graph.lint()
    specs = [n.meta["spec"] for n in modes[True].graph.nodes if n.op == "placeholder"]
    inputs = tuple((name, spec) for (name, _), spec in zip(attempt.signature.inputs, specs, strict=True))
    leaves = {str(n.target) for r in modes.values() for n in r.graph.nodes if n.op == "call_module"}
    info = CaptureInfo(
        model=model,
        signature=Signature(attempt.signature.parameters, attempt.signature.trees, inputs),
        trees={m: r.tree for m, r in modes.items()},
        notes=tuple(dict.fromkeys(attempt.notes)),
        kept_whole=tuple(sorted(attempt.kept_whole)),
        batch_free=freed.marks != {} and not freed.rows,
        small_inputs=freed.small,
        written=tuple(sorted(_state_writes(modes) & set(dict(model.named_parameters())))),
        attribute_guard=AttributeGuard(model, leaves, attempt.own_attributes),
    )
    captured = Captured({m: r.graph for m, r in modes.items()}, f"Captured{type(model).__name__}", _lp=info)
    captured._lp_fill(model, state)
    return captured


def _leaf_paths(model: nn.Module, leaf: Iterable[str | type[nn.Module]]) -> set[str]:
    paths = {path for path, _ in model.named_modules()}
    found: set[str] = set()
    for item in leaf if isinstance(leaf, Iterable) and not isinstance(leaf, (str, type)) else [leaf]:
        if not isinstance(item, (str, type)):
            raise UsageError(f"leaf={item!r} is neither a module's name nor a class")
        if isinstance(item, str):
            if item not in paths:
                raise UsageError(f"leaf={item!r}: no such module{explain.closest(item, paths)}")
            found.add(item)
        else:
            found |= {path for path, module in model.named_modules() if path and isinstance(module, item)}
    return found
