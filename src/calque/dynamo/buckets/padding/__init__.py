"""Runs a program with varying sizes on arrays padded to one size.

A program is traced once with symbols for the sizes that vary, so that the symbol of each axis is
known: two sizes that happen to be equal are never confused. Its primitives then run one after
another on arrays of the padded sizes, and for every axis it is known which elements are the
program's. The values of the others do not matter: wherever a primitive would let them affect the
program's elements, they are replaced by neutral values.

`padded` describes how arrays are padded, the modules of rules handle each primitive, and
`interpreter` runs a program.
"""

from calque.dynamo.buckets.padding import elementwise, indexing, products, reductions, slicing
from calque.dynamo.buckets.padding.interpreter import run
from calque.dynamo.buckets.padding.padded import Padded, Sizes, Unpaddable

TABLES = (elementwise, indexing, products, reductions, slicing)
"""The modules that put their rules into the table."""

__all__ = ["TABLES", "Padded", "Sizes", "Unpaddable", "run"]
