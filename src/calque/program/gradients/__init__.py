"""Programs with gradients: cuts PyTorch's autograd graph, and runs backward passes as programs."""
