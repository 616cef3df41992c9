"""calque against hand-written JAX and PyTorch; every figure is a ratio measured in one process."""
