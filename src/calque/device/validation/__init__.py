"""Checks of values, which PyTorch's CPU kernels make but rules cannot."""
