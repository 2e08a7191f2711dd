"""`lpcompile train`: a training job as data, and the data sets it reads.

Imports core, passes, runtime, planning and sources.
"""
