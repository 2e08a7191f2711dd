"""Capture: from an nn.Module and example inputs to a graph of its operations, under the model's own names.

In reading order: `capture` (the pass), `captured` (its result), `signature` (how the model is called), `attempt` (one
way to record, and what is kept whole), `record` (one recording), `recording` (what comes of it), `switches` (layers
that are skipped at random), `merging` and `switched_graph` (what a random branch does in either outcome, and how it is
written), `batch_freedom` (recordings at other batch sizes), `graph_sizes` (with other numbers of nodes and edges),
`attribute_guard` (attributes that must not change afterwards), `explain` (error messages).

Imports `errors`, `core`, `passes.graph` and itself.
"""
