"""The ways to train that a bench compares, each as one rank of it.

`contender`: what all of them have in common; `ways`: plain training, data parallelism and the methods of ours, by name;
`torch_pipeline`: torch's own pipelines on our stages; `work`: the model, samples, loss and optimizer that they share.

Imports core, passes, runtime, planning, the front door, training and sources; nothing else of `bench`.
"""
