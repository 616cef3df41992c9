"""Rules over lists of tensors: `_foreach_*`, and fused steps of optimizers."""
