"""`python -m lpcompile paper`: the tables of the paper again, at a scale that one can afford, beside its figures.

`printed` holds the paper's figures; `experiments` says which run stands for each of them, at the sizes of `scales`, on
`networks` and `data`; `train_run` is one run, `run` all of them (the loop and the records are those of `study`),
`speeds` the step times and `results` the rows; `formula` is the paper's own speedup, `schedules` has the tables that
need no training; `trends` says from the numbers whether what the paper found holds; `tables` and `page` show all of it.

Imports the compiler, the runtime, simulate, training, sources, draw, study, compare and report.
"""
