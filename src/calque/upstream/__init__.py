"""What calque uses of JAX and PyTorch that they do not promise to keep: read when they change."""
