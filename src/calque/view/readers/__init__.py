"""Readers from each kind of graph to a `ViewGraph`, and the table of readers."""

from calque.view.readers.table import read, reader

__all__ = ["read", "reader"]
