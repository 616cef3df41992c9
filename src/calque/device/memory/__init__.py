"""What a storage holds.

Cells, the geometry of views, strides, random state, values that the host reads.
"""
