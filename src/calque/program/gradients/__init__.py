"""Programs that carry gradients.

Where PyTorch's graph is cut, and backwards that are programs, too.
"""
