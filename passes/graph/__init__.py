"""Graphs: representation and analyses that the other passes share.

Representation: `module` (a GraphModule with a training and an evaluation graph), `calls` and `drawn_calls` (callables
in its nodes), `tree` (nested values), `serial` (a graph as plain data). Analyses: `dataflow` (as a networkx graph),
`liveness` (values that cross a cut), `residual` (residual blocks), `batch` (sizes that follow the batch), `mutation`
(attributes that forward assigns). Running models: `untouched` (without side effects), `own_generators` (draws that no
state shows), `fake_shapes` (results of operators on fake tensors), `known_results` (the same where an equal call was
seen), `flop_formulas` (FLOPs of operators).

Imports `core` and itself.
"""
