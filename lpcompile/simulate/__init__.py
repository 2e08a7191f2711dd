"""Plays schedules against measured or nominal costs: the timeline, the speedup, memory, larger clusters.

Imports core, passes, runtime, planning and draw.
"""
