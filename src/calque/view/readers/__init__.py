"""Functions that convert each kind of graph to a `ViewGraph`, and the table of these."""

from calque.view.readers.table import read, reader

__all__ = ["read", "reader"]
