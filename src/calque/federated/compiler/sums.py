"""Compensated sums, as accurate for millions of clients as for ten.

A running sum of floats consists of a total, its error, and the sum of the last few chunks. Several
chunks are added to the total together, because the cost would not be negligible for each chunk. The
result is off by a few units in the last place, regardless of the number of values and chunks.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

BLOCK = 8
"""How many chunks are summed before they are added to the total."""


class RunningSums(NamedTuple):
    """The running sums of the tensors of a pytree.

    Attributes:
        totals, rests: pairs whose sums are exact to twice the precision of the dtype.
        blocks: the sums of the chunks that are not yet in the totals.
        count: the number of chunks so far.
    """

    totals: list[Any]
    rests: list[Any]
    blocks: list[Any]
    count: Any


def wide(dtype: Any) -> Any:
    """Returns the dtype of running sums: float32 for half precision, otherwise the same dtype."""
    short = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return np.dtype("float32") if short else dtype


def nothing(leaves: list[Any]) -> RunningSums:
    """Returns the initial sums; `leaves` have the shapes and dtypes of a value."""
    zeros = [jnp.zeros(leaf.shape, wide(leaf.dtype)) for leaf in leaves]
    return RunningSums(zeros, zeros, zeros, jnp.zeros((), jnp.int32))


def with_chunk(running: RunningSums, leaves: list[Any]) -> RunningSums:
    """Adds values of shape `[chunk, ...]` to running sums."""
    pairs = zip(running.blocks, leaves, strict=True)
    blocks = [block + _folded(leaf.astype(block.dtype)) for block, leaf in pairs]
    running = running._replace(blocks=blocks, count=running.count + 1)
    return jax.lax.cond(running.count % BLOCK == 0, _settled, lambda same: same, running)


def across(running: RunningSums, axis: str) -> RunningSums:
    """Returns the running sums of all devices along a mesh axis."""
    return jax.tree.map(lambda part: over_devices(part, axis), _settled(running))


def over_devices(array: Any, axis: str) -> Any:
    """Returns the sum of an array over the devices along a mesh axis.

    The parts of complex numbers are summed separately, because XLA crashes on sums of complex
    constants, such as zero rests.
    """
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return jax.lax.complex(*(jax.lax.psum(part, axis) for part in (array.real, array.imag)))
    return jax.lax.psum(array, axis)


def results(running: RunningSums) -> list[Any]:
    """Returns the results of running sums."""
    settled = _settled(running)
    return [total + rest for total, rest in zip(settled.totals, settled.rests, strict=True)]


def _settled(running: RunningSums) -> RunningSums:
    """Adds the last chunks to the totals."""
    parts = zip(running.totals, running.rests, running.blocks, strict=True)
    sums = [_with_block(*part) for part in parts]
    zeros = [jnp.zeros_like(block) for block in running.blocks]
    return RunningSums(
        [total for total, _ in sums], [rest for _, rest in sums], zeros, running.count
    )


def _with_block(total: Any, rest: Any, block: Any) -> tuple[Any, Any]:
    if not jnp.issubdtype(total.dtype, jnp.inexact):
        return total + block, rest
    found, lost = _added(total, block)
    return _added(found, rest + lost)  # so that the rest stays small, and its rounding negligible


def _folded(values: Any) -> Any:
    """Returns the sum over the first axis, by pairwise summation."""
    while (count := values.shape[0]) > 1:
        half = count // 2
        halves = values[:half] + values[half : 2 * half]
        values = jnp.concatenate([halves, values[2 * half :]]) if count % 2 else halves
    return values[0]


def _added(a: Any, b: Any) -> tuple[Any, Any]:
    """Returns a rounded sum and its exact rounding error; XLA keeps the order of additions.

    Knuth, The Art of Computer Programming, volume 2, 4.2.2, theorem B.
    """
    found = a + b
    a, b, rounded = map(jax.lax.stop_gradient, (a, b, found))
    part = rounded - a
    lost = (a - (rounded - part)) + (b - part)
    return found, jnp.where(jnp.isfinite(rounded), lost, 0)
