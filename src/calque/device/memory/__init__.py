"""Storages and their contents: cells, the geometry of views, strides, random state, host reads."""
