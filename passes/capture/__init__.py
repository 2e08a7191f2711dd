"""From an nn.Module and example inputs to a graph of its operations, under the model's own names."""
