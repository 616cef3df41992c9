"""From each kind of graph to a `ViewGraph`: a file for each, and a table of which reads what."""

from calque.view.readers.table import read, reader

__all__ = ["read", "reader"]
