"""`lpcompile compare`: accuracy, speed and properties of all methods on one model and data set.

Imports every room but cli.
"""
