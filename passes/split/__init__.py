"""Where a graph may be cut, the units between cuts, and the stages that a choice of cuts gives, checked bitwise."""
