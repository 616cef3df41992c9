"""Storages and their contents.

Cells, the geometry of views, strides, random state, values that the host reads.
"""
