"""Messages between ranks.

mesh: this process's place among stages and replicas. handshake: joining, comparing, merging metrics. transport: sends
and receives of a schedule, in one process or over torch.distributed. buffer, buffer_wire: the replay buffers of
`dgl-async`, in one process and between processes. pack: pickling for processes that we start.

Imports core and `runtime.launch`; the buffers also batches and workers of `runtime.engine`.
"""
