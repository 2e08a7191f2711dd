"""What is known about a captured graph: liveness, residual blocks, batch dimensions, mutations."""
