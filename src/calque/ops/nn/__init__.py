"""Rules of neural networks.

Convolution, pooling, normalization, attention, recurrent layers, losses.
"""
