"""`python -m lpcompile study`: accuracy of methods over epochs and over time, beside plain training.

`config` reads what is to be run, `random_runs` draws it; `networks` and `data` make models and batches; `train_run` is
one run with its `evaluation`, `pool` runs many of them and `records` keeps one JSON line for each; `times` measures
steps; `summary` makes rows of the results, `answers` tells which method to take, `page` and `picture` show them. May
import everything but the command line and the other tools that measure.
"""
