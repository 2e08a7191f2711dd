"""Saving and loading a training run, on any number of ranks.

Reading order: state (a trainer's state, rank by rank), named (the same under the model's own names), plain (nested
state as JSON and tensors), storage (safetensors files for torch.distributed.checkpoint), checkpoint (folders of them).

Imports core, errors, and the rooms comm, engine, launch and penalty of the runtime.
"""
