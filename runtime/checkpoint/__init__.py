"""Saving and loading a training run, on any number of ranks."""
