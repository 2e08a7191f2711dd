"""Epochs: `program.fit`, evaluation, logs, progress, timelines."""
