"""`lpcompile train`: a training run as data, and the parts of it that bench and compare share.

Reading order: job (the run as plain data), optimizers (and schedules, by name), data (by name; images, named, text and
sampler are its parts), timm_recipe (timm's own optimizers, schedules and augmentation), build (from a job to a program
and its trainer), train (the ranks), measures (facts that every measurement reports).

Imports core, passes, runtime, planning, sources, models and the front door (compile, program).
"""
