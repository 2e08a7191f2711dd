"""Record at other batch sizes to learn whether the graph depends on the batch, and where."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from lpcompile.passes.capture import explain, graph_sizes
from lpcompile.passes.capture.attempt import Attempt, CheckCall
from lpcompile.passes.capture.record import input_reads
from lpcompile.passes.capture.record.refusal import Unrecordable
from lpcompile.passes.capture.recording import Recording
from lpcompile.passes.capture.signature import Rebuild
from lpcompile.passes.graph.batch import (
    Different,
    batch_size,
    confirm,
    cropped,
    follows,
    resized,
    same_call,
    same_graph,
)

ROWS = "an input refers to rows of another by number, so these are no samples"
SMALL_IMAGE = 64  # pixels; the gate uses images of this size if the graph is proven not to depend on it
SMALL_IMAGE_FLOPS = 4e9  # per sample: below this the gate is cheap anyway


class Freed(NamedTuple):
    """The integers that follow the batch, {} if the graph is tied to its batch."""

    marks: dict[fx.Node, Any]
    small: list[torch.Tensor] | None = None  # smaller inputs for the gate
    rows: bool = False  # the rows of the inputs refer to each other: any number of them, but no samples


def free_batch(
    attempt: Attempt, recording: Recording, tensors: list[torch.Tensor], training: bool, rebuild: Rebuild
) -> Freed:
    """Record at other batch sizes, or with other numbers of nodes and edges where these are no samples."""
    batch = batch_size(tensors)
    if batch is None:
        return Freed({})
    rows = _numbers_rows(tensors, batch) and attempt.fails_on(resized(tensors, 2), rebuild)
    reason = ROWS if rows else ""
    read = input_reads.checks(recording.graph)
    if read:
        number, inputs = read[0].args[1:]
        reason = f"Python reads {str(number)[:40]} from the values of {inputs}{explain.at(read[0].meta['source'])}"
    if rows:
        marks = graph_sizes.free(attempt, recording, tensors, training, rebuild)
        if isinstance(marks, dict):
            attempt.notes.append(f"{ROWS}: each step takes a batch whole, with any number of nodes and edges")
            if read:
                attempt.notes.append(f"a batch with another number is refused: {reason}")
            return Freed(marks, rows=True)
        reason = f"{reason}, and {marks}"
    for size in () if rows or read else (batch + 1, batch + 2, 2 * batch):
        other = resized(tensors, size)
        smaller = _small_images(recording.graph, other, batch)
        for probe in [smaller, other] if smaller is not None else [other]:
            try:
                check = _alike(recording, (batch, size)) if probe is smaller else None
                second = attempt.record(probe, training, rebuild, check)
                if second.tree.text != recording.tree.text:
                    raise Different(f"the output is {recording.tree} and {second.tree} at batch {size}")
                marks = same_graph(recording.graph, second.graph, (batch, size), probe is smaller)
                if recording.reads_sizes or follows(marks):  # any two points fit a line: confirm with a third
                    third = 2 * batch + 5
                    confirm(marks, attempt.record(resized(probe, third), training, rebuild).graph, third)
                return Freed(marks, probe if probe is smaller else None)
            except (Different, Unrecordable) as error:
                if isinstance(error, Unrecordable) and error.stray and not attempt.warmed:
                    attempt.warm_caches(tensors, rebuild)
                reason = str(error)
    tie(recording.graph)
    attempt.notes.append(f"the graph is tied to batch size {batch}: {reason}")
    return Freed({})


def _alike(recording: Recording, batches: tuple[int, int]) -> CheckCall:
    """Ends a recording with other images at the first call that is another one: often it is among the first."""

    def check(number: int, call: fx.Node) -> None:
        if number < len(recording.calls) and not recording.calls[number]._erased:
            same_call(recording.calls[number], call, batches)

    return check


def tie(graph: fx.Graph) -> None:
    """No size of the graph follows the batch."""
    for node in graph.nodes:
        if node.meta.get("spec") is not None:
            node.meta["spec"] = node.meta["spec"].with_batch(())


def _numbers_rows(tensors: list[torch.Tensor], batch: int) -> bool:
    """Whether integers among the inputs may be numbers of rows, as the edges of a graph number its nodes."""
    integers = [t for t in tensors if t.dtype in (torch.int32, torch.int64) and t.numel() and t.device.type != "meta"]
    return any(2 <= int(t.max()) < batch for t in integers)


def _small_images(graph: fx.Graph, tensors: list[torch.Tensor], batch: int) -> list[torch.Tensor] | None:
    """The inputs with images cropped to 64 px, or None if the gate would save little time."""
    flops = sum(n.meta.get("flops", 0) for n in graph.nodes) / max(batch, 1)
    smaller = tensors if flops < SMALL_IMAGE_FLOPS else cropped(tensors, SMALL_IMAGE)
    return None if smaller is tensors else smaller
