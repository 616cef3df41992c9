"""Rules that take the elements along axes together.

Sums, extrema, running sums, sorting, histograms.
"""
