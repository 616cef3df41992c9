"""Detects sums of integers that do not fit their dtype, on clients and the server.

An operator in the middle of a program cannot raise, because only the finished program shows whether
its sum has wrapped around. So it registers a check here, which the caller of the program evaluates.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calque.errors import Origin
from calque.federated.representation import Sequence


class Overflow(NamedTuple):
    """A sum that may not fit.

    Attributes:
        dtypes: the dtypes of the sum, as text.
        origin: the user's line.
        flag: whether the sum has wrapped around.
    """

    dtypes: str
    origin: Origin | None
    flag: Any


OF_SEQUENCE = "Convert the elements to a wider dtype: sequence_map"
"""The remedy if the sum of a sequence overflows."""

_found: ContextVar[list[Overflow] | None] = ContextVar("_found", default=None)


@contextmanager
def noticed() -> Iterator[list[Overflow]]:
    """A context manager that collects the sums of integers evaluated in this JAX trace."""
    found: list[Overflow] = []
    before = _found.set(found)
    try:
        yield found
    finally:
        _found.reset(before)


@contextmanager
def unnoticed() -> Iterator[None]:
    """A context manager for functions that are traced separately, whose tracers must not escape."""
    before = _found.set(None)
    try:
        yield
    finally:
        _found.reset(before)


def notice(sequence: Sequence, total: object, origin: Origin | None) -> None:
    """Register a check that the sum of a sequence has not wrapped around."""
    found = _found.get()
    pairs = zip(jax.tree.leaves(sequence.elements), jax.tree.leaves(total), strict=True)
    whole = [(leaf, one) for leaf, one in pairs if jnp.issubdtype(leaf.dtype, jnp.integer)]
    if found is None or not whole:
        return
    elements = [leaf.astype(estimated(leaf.dtype)) for leaf, _ in whole]
    totals = [one for _, one in whole]
    estimates = Sequence(elements, sequence.length).sum()
    found.append(Overflow(dtype_names(totals), origin, wrapped(totals, estimates)))


def wrapped(totals: list[Any], estimates: list[Any]) -> Any:
    """Returns a flag that sums of integers differ much from the same sums of floats."""
    flags = [
        jnp.any(jnp.abs(estimate - total.astype(estimate.dtype)) >= _half_range(total.dtype))
        for total, estimate in zip(totals, estimates, strict=True)
    ]
    return jnp.stack(flags).any()


def dtype_names(totals: list[Any]) -> str:
    """Returns the dtypes of some arrays as text."""
    return " or ".join(sorted({str(total.dtype) for total in totals}))


def estimated(dtype: Any) -> Any:
    """Returns the float dtype for summing integers, to detect wrapping."""
    return np.dtype("float64" if np.dtype(dtype).itemsize == 8 else "float32")


def _half_range(dtype: Any) -> Any:
    """Returns half the number of integers in a dtype."""
    return 2.0 ** (8 * np.dtype(dtype).itemsize - 1)
