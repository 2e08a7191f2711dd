"""Messages between ranks.

exchange: plain data and tensors as bytes, never pickles. mesh: this process's place among stages and replicas.
handshake: joining, comparing, merging metrics. fingerprint: whether all ranks have the same batch. transport: sends and
receives of a schedule, in one process or over torch.distributed. buffer, buffer_wire: the replay buffers of
`dgl-async`, in one process and between processes. quantize: messages in 8 bits. link: bandwidth and latency, measured.
pack: pickling for processes that we start.

Imports core and `runtime.launch`; the buffers also batches and workers of `runtime.engine`.
"""
