"""Saving and loading a training run, on any number of ranks.

Reading order: state (a trainer's state, rank by rank), named (the same under the model's own names), plain (nested
state as JSON and tensors), storage (safetensors files), checkpoint (folders of them, and reading), finite (what is
never saved), save (writing), room (whether that will be possible), whole_model (all weights in one process again).

Imports core, errors, and the rooms comm, engine, launch and penalty of the runtime.
"""
