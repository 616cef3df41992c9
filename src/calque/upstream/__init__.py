"""Names of JAX and PyTorch that they do not promise to keep, with their uses."""
