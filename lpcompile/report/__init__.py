"""The HTML page of a plan: its graph, stages, timeline and tables.

Imports every room but cli.
"""
