"""`lpcompile train`: a training run as data, and the parts of it that bench and compare share.

Reading order: job (the run as plain data), recipe (optimizer and schedule by name), data (images), build (from a job to
a program and its trainer), train (the ranks), measures (facts that every measurement reports).

Imports core, passes, runtime, planning, sources, models and the front door (compile, program).
"""
