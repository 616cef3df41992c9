"""The kernels that PyTorch's dispatcher calls."""
