"""The trainer and the machinery under it, from the user's call down to a tensor:

trainer (a user's calls, the path of a step) > phases (which method runs when) > engine (ranks, transport, schedule of
this process) > executor (runs a rank's instructions) > handlers (one for each instruction) > worker (a rank's state).
settings, batch: options and micro-batches. team, outputs: workers, networks and the loss from a compiled program.
update, versions: optimizers, weight stashing. torch_compile, memory, schedules: compiled networks, memory figures, the
default schedule of a plan.

Imports core and the other rooms of `runtime`; never passes, planning or the Program itself (see `core.compiled`).
"""
