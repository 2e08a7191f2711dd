"""Recording: one eager forward on fake (or real) tensors becomes one fx graph.

In reading order: `recorder` (listens to forward), `graph_writer` (writes the nodes), `operations` (torch functions as
fx nodes), `leaves` (modules that stay whole), `shadow` (the copy that runs), `patches` (hooks into torch), `observer`
(FLOPs, writes and saved tensors of a call), `provable` (branches decided in advance), `caches` (the user's caches),
`draws` (random choices of Python code), `drawn` (arrays that it draws), `input_reads` (numbers read from inputs),
`functions` (custom autograd functions), `refusal` (what cannot be recorded), `values` (helpers).

Imports `core`, `passes.graph` and itself, nothing else of `passes.capture`.
"""
