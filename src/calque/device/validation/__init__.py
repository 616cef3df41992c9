"""Checks of values that PyTorch's CPU kernels make but rules cannot."""
