"""Figures, charts, tables and terminal text. Draws what it is given.

Imports core and passes for the types of what it draws.
"""
