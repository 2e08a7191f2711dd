"""What every unit costs: measured in real steps, or counted in FLOPs."""
