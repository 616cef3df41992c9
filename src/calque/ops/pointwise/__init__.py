"""Rules that work element by element.

Arithmetic, comparisons, activations, special functions.
"""
