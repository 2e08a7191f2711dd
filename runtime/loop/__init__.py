"""The training loop around a trainer, and `program.fit`, which starts processes for it.

Reading order: options (what a run saves, logs, evaluates), loop (epochs), evaluate (the serial model's figures), log
(metrics and progress), timeline (a Chrome trace of all ranks), fit (ranks from a script).

Imports core, errors, and the other rooms of the runtime; `fit` is given the function that compiles a program again.
"""
