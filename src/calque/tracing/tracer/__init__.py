"""`Tracer`, like torch.fx's: runs a program on proxies and records what it does as a graph."""
