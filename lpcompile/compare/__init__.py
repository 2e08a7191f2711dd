"""`lpcompile compare`: accuracy, speed and properties of all methods on one model and data set.

Reading order: request (options), runners and rank (one process of a run), run (the methods in turn), results,
properties (the paper's Table 1 from schedules), timeline (three mini-batches from traces), then table and page.

Imports core, runtime, the front door, training, sources and draw.
"""
