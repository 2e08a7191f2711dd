"""Record at other batch sizes to learn whether the graph depends on the batch, and where."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from lpcompile.passes.capture import explain
from lpcompile.passes.capture.attempt import Attempt
from lpcompile.passes.capture.record import input_reads
from lpcompile.passes.capture.record.refusal import Unrecordable
from lpcompile.passes.capture.recording import Recording
from lpcompile.passes.capture.signature import Rebuild
from lpcompile.passes.graph.batch import Different, batch_size, confirm, follows, resized, same_graph

SMALL_IMAGE = 64  # pixels; the gate uses images of this size if the graph is proven not to depend on it
SMALL_IMAGE_FLOPS = 4e9  # per sample: below this the gate is cheap anyway


def free_batch(
    attempt: Attempt, recording: Recording, tensors: list[torch.Tensor], training: bool, rebuild: Rebuild
) -> tuple[dict[fx.Node, Any], list[torch.Tensor] | None]:
    """The integers that follow the batch ({} if the graph is tied to its batch), and smaller inputs for the gate."""
    batch = batch_size(tensors)
    if batch is None:
        return {}, None
    rows = _numbers_rows(tensors, batch) and attempt.fails_on(resized(tensors, 2), rebuild)
    reason = "an input refers to rows of another by number, so these are no samples" if rows else ""
    read = input_reads.checks(recording.graph)
    if read:
        number, inputs = read[0].args[1:]
        reason = f"Python reads {str(number)[:40]} from the values of {inputs}{explain.at(read[0].meta['source'])}"
    for size in () if rows or read else (batch + 1, batch + 2, 2 * batch):
        other = resized(tensors, size)
        smaller = _small_images(recording.graph, other, batch)
        for probe in [smaller, other] if smaller is not None else [other]:
            try:
                second = attempt.record(probe, training, rebuild)
                if second.tree.text != recording.tree.text:
                    raise Different(f"the output is {recording.tree} and {second.tree} at batch {size}")
                marks = same_graph(recording.graph, second.graph, (batch, size), probe is smaller)
                if recording.reads_sizes or follows(marks):  # any two points fit a line: confirm with a third
                    third = 2 * batch + 5
                    confirm(marks, attempt.record(resized(probe, third), training, rebuild).graph, third)
                return marks, probe if probe is smaller else None
            except (Different, Unrecordable) as error:
                if isinstance(error, Unrecordable) and error.stray and not attempt.warmed:
                    attempt.warm_caches(tensors, rebuild)
                reason = str(error)
    tie(recording.graph)
    attempt.notes.append(f"the graph is tied to batch size {batch}: {reason}")
    return {}, None


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

    def is_image(t: torch.Tensor) -> bool:
        return t.dim() == 4 and t.is_floating_point() and min(t.shape[2:]) >= 2 * SMALL_IMAGE

    if flops < SMALL_IMAGE_FLOPS or not any(is_image(t) for t in tensors):
        return None
    return [t[:, :, :SMALL_IMAGE, :SMALL_IMAGE].contiguous() if is_image(t) else t for t in tensors]
