"""Runs a program with varying sizes on arrays padded to one size.

A program is traced once with symbols for the sizes that vary, so that each axis says by itself
which symbol it has: two sizes that happen to be equal are never taken for one another. Its
primitives then run one after another on arrays of the padded sizes, and for every axis it is known
which elements are the program's. What the others hold is never relied upon: wherever a primitive
would let them reach the program's elements, they are replaced by what changes nothing.

`padded` knows how arrays are padded, the modules of rules what each primitive does with such
arrays, `interpreter` runs a program.
"""

from calque.dynamo.buckets.padding import elementwise, indexing, products, reductions, slicing
from calque.dynamo.buckets.padding.interpreter import run
from calque.dynamo.buckets.padding.padded import Padded, Sizes, Unpaddable

TABLES = (elementwise, indexing, products, reductions, slicing)
"""The modules that put their rules into the table."""

__all__ = ["TABLES", "Padded", "Sizes", "Unpaddable", "run"]
