"""AuxNets and heads: small networks derived from a stage's own graph."""
