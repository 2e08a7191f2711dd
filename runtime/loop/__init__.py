"""The training loop around a trainer, and `program.fit`, which starts processes for it.

Reading order: options (what a run saves, logs, evaluates), data (one order of samples for all ranks), loop (epochs),
evaluate (the serial model's figures), average (of weights), best (the best evaluation), log (metrics and progress),
callbacks and loggers (a user's own), record (what `fit` returns), timeline (a Chrome trace of all ranks), fit (ranks
from a script).

Imports core, errors, and the other rooms of the runtime; `fit` is given the function that compiles a program again.
"""
