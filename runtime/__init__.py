"""The engine that trains a compiled program on K devices. Imports errors and core."""
