"""Runs a program with varying sizes on arrays padded to one size.

A program is traced once with symbols for the varying sizes, so that the symbol of each axis is
known, and two sizes that happen to be equal are never confused. Its primitives then run one by one
on arrays of the padded sizes, and each axis has a layout that says which elements are valid. The
values of the padding do not matter: wherever a primitive would let them affect valid elements, they
are replaced by neutral values.

`padded` describes padded arrays, the modules of rules handle each primitive, and `interpreter` runs
a program.
"""

from calque.dynamo.buckets.padding import elementwise, indexing, products, reductions, slicing
from calque.dynamo.buckets.padding.interpreter import run
from calque.dynamo.buckets.padding.padded import Padded, Sizes, Unpaddable

TABLES = (elementwise, indexing, products, reductions, slicing)
"""The modules that register rules."""

__all__ = ["TABLES", "Padded", "Sizes", "Unpaddable", "run"]
