"""The trainer and the machinery under it, from the user's call down to a tensor:

trainer (a user's calls, the path of a step) > phases (which method runs when) > engine (ranks, transport, schedule of
this process) > executor (runs a rank's instructions) > handlers (one for each instruction) > worker (a rank's state).
settings, loss_parts, cutting, the room batches: options, what a loss is a mean over, micro-batches, a user's batch.
team: workers, networks and the loss from a compiled program. update, versions: optimizers, weight stashing.
torch_compile, memory, metrics, schedules: compiled networks, memory, a step's figures, the default schedule of a plan.

Imports core and the other rooms of `runtime`; never passes, planning or the Program itself (see `core.compiled`).
"""
