"""Cuts, units and stages: from a captured graph to the modules that run it. May import passes.capture, passes.graph
and core.

`cuts` lists every position with the reason that forbids it, `both_modes` finds each in the evaluation graph, `units`
groups the steps between cuts for the planner, `split` builds the stage modules, `in_place` makes their ReLUs and sums
in-place, and `gate` compares the program with the model bitwise (`idle_mask`: where a mask masks nothing); `suspect`
names the module where they differ.
`graph_export` gives graph, cuts, units and stages as one networkx graph.
"""
