"""Run PyTorch programs as XLA programs."""
