"""Rules that take each element by itself.

Arithmetic, comparisons, activations, special functions.
"""
