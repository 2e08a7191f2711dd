"""Readable Python source for a stage or an AuxNet."""
