"""Rules of linear algebra.

Products, decompositions, systems of equations, distances, Fourier transforms.
"""
