"""Ranks as processes: starting, pinning and supervising them, and naming the one that failed first.

Reading order: launch (processes, process group), board (the instruction that each rank runs, in shared memory, and the
first cause of several failures), watch (which rank hangs, by heartbeats and notes), cpu (which process only waits for
one), supervisor (of ranks that we launched), overseer (the same under torchrun, through the store), identity (of a
process), temporary (folders that a killed launcher does not leave for ever), parent (questions to the launcher), hosts
(network namespaces, joined by links of a given rate).

Imports core, errors and `runtime.comm.exchange`.
"""
