"""Private names of JAX and PyTorch that calque uses, with their purposes."""
