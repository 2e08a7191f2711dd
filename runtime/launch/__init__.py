"""Ranks as processes: starting, pinning and supervising them, and naming the one that failed first.

Reading order: launch (processes, process group, supervisor), board (the instruction that each rank runs, in shared
memory, and the first cause of several failures).

Imports core and errors.
"""
