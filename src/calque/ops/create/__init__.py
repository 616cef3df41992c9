"""Rules that create tensors: filled, random, and rearranged."""
