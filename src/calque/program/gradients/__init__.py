"""Programs that carry gradients: cuts of PyTorch's graph, and backwards that are also programs."""
