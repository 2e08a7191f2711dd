"""What `transformers.Trainer` is given: arguments that stages cannot follow, and the samples on which it is set up."""

from __future__ import annotations

from itertools import islice
from typing import Any

from torch import Tensor

from lpcompile.core.stage_io import TensorSpec
from lpcompile.errors import UsageError

REFUSED = {  # arguments that change the model or its loop in ways that stages do not follow
    "fsdp": "shards of FSDP; K divides the model",
    "deepspeed": "DeepSpeed's engine; K divides the model",
    "torch_compile": "torch.compile of the whole model; pass settings={'compile': True}",
    "auto_find_batch_size": "another batch size after a failure; pass the batch size",
    "neftune_noise_alpha": "hooks on the embedding",
    "use_liger_kernel": "other layers in the model",
}


def refuse(args: Any) -> None:
    for name, what in REFUSED.items():
        if getattr(args, name, None):
            raise UsageError(f"TrainingArguments({name}={getattr(args, name)!r}) stands for {what}; leave it out")


def recomputes(args: Any) -> bool:
    """Whether activations are to be recomputed, which stages do themselves."""
    found = False
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        if getattr(args, name, False):
            setattr(args, name, False)
            found = True
    return found


def first_samples(loader: Any, size: int) -> list[Any]:
    data = loader.dataset
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        some = min(size, len(data))
        samples = [data[i * len(data) // some] for i in range(some)]  # also where they are sorted by class
    else:
        samples = list(islice(iter(data), size))
    if not samples:
        raise UsageError("the training data set is empty")
    return samples


def spec_of(tensor: Tensor, size: int) -> TensorSpec:
    batch = tuple(int(d == 0 and tensor.shape[0] == size) for d in range(tensor.dim()))
    return TensorSpec.of(tensor).with_batch(batch)
