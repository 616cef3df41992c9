"""`Tracer`, as torch.fx's: runs a program on proxies and keeps what it did as a graph."""
