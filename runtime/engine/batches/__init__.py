"""A user's batch on its way to the stages, and the model's output on its way back to the user's loss.

`forms`: a batch as tensor, tuple, dict or `BatchEncoding`; `batch`: its tensors, cut into micro-batches; `shares`: the
weight of a micro-batch's loss in the loss of its batch; `outputs`: the model's output in its own structure;
`attributes`: what a layer keeps from the forward of a micro-batch for its backward.

Imports core and `engine.settings`; nothing else of `runtime`.
"""
