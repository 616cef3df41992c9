"""Programs of PyTorch as functions of JAX, and functions of JAX as programs of PyTorch; export."""
