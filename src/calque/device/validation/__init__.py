"""Checks of values that PyTorch's CPU kernels make and rules cannot."""
