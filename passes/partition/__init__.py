"""The best contiguous split of units into K stages, with a proof of how good it is."""
