"""What the compiler and the runtime both read, and nothing that only one of them needs.

Records: `stage_io` (tensors, what a stage takes and gives), `cost` (units and profiles), `plan`, `method`, `compiled`.
Schedules: `schedule` (instructions as data), `verify` (proof that they run), `staleness` (how late gradients are),
`micro_batches` (how many, and torch's pipelines), `split_backward`, `trace` (what ranks did).
Text: `tables`, by which plans and schedules print themselves.
Tensors: `memory_format` (channels last). Files, random states, progress: the room `system`.

May import `lpcompile.errors` and itself.
"""

__version__ = "0.1.0"
