"""The engine that trains a compiled program on K devices."""
