"""Rules that reduce the elements along axes.

Sums, extrema, running sums, sorting, histograms.
"""
