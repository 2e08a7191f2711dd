"""Layer-parallel training in other libraries' own loops, with their arguments, callbacks, loggers and checkpoints.

    lpcompile.integrations.transformers   Trainer(..., K=2), in place of transformers.Trainer
    lpcompile.integrations.lightning      LayerParallelStrategy(K=2), for lightning.Trainer(strategy=...)

Nothing is imported before it is used: pip install lpcompile[hf], lpcompile[lightning].

accelerate's own loop has no place for a pipeline: `loss = model(**batch).loss`, `accelerator.backward(loss)` and
`optimizer.step()` are calls of the user's script, one after the other, while a pipeline runs forwards and backwards of
micro-batches in turn on all ranks. In such a script these lines become one, `trainer.step(batch)`, with
`trainer = program.trainer(optimizer=...)`.

Modules: `stand_in` (a model's call told apart from the loss around it), `training_step` (the same in a
LightningModule), `logged` (what that logs and measures), `draws` (random numbers around the model's call),
`shared_optimizer` (the library's optimizer for the whole model, and each rank's own), `padding`
(texts of one length), `alone` (a rank that accelerate takes for a single process), `transformers_arguments` (what a
Trainer refuses, and on which samples it is set up), `transformers_rank` (the processes that `Trainer.train()` starts).

Imports the compiler, the runtime, planning and the front door, each module also the library that it is for; no tool.
"""
