"""Programs that decide by tensors: every way through is followed, and joined into one graph."""
