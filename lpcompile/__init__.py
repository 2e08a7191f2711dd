"""lpcompile layer-parallelizes residual models: capture, cut, balance, split."""
