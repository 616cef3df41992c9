"""The minimum and the maximum over the clients, and their derivatives."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calque.federated.compiler import sums
from calque.federated.compiler.reducer import Reducer, gathered, masked


class Extremum(NamedTuple):
    """The extremum of one tensor over the clients so far.

    The derivative is shared equally among all clients that have this value, as in `jnp.min`, so it
    does not depend on the order of clients, on chunks or on devices. If no derivative is needed,
    the compiler drops `holders` and `count`.

    Attributes:
        value: the minimum or maximum.
        holders: the sum of the values of the clients that have the extremum, for the derivative;
            None for integers and booleans.
        count: the number of these clients.
    """

    value: Any
    holders: Any = None
    count: Any = None


class Extreme(Reducer):
    """The elementwise minimum or maximum over the clients."""

    of_none = False
    least = True

    def start(self, one: Any) -> Any:
        def nothing(s: Any) -> Extremum:
            worst = jnp.full(s.shape, self._worst(s.dtype), s.dtype)
            if not jnp.issubdtype(s.dtype, jnp.inexact):
                return Extremum(worst)
            zeros = jnp.zeros(s.shape, sums.wide(s.dtype))
            return Extremum(worst, zeros, jnp.zeros(s.shape, jnp.int32))

        return jax.tree.map(nothing, one)

    def _worst(self, dtype: Any) -> Any:
        if dtype == jnp.bool_:
            return self.least
        if jnp.issubdtype(dtype, jnp.integer):
            return jnp.iinfo(dtype).max if self.least else jnp.iinfo(dtype).min
        most = np.asarray(np.inf).astype(dtype)
        if not np.isinf(most):  # an 8-bit float without infinity
            most = jnp.finfo(dtype).max
        return most if self.least else -most

    def add(self, running: Any, values: Any, mask: Any, clients: Any) -> Any:
        def joined(values: Any, before: Extremum) -> Extremum:
            kept = jax.lax.stop_gradient(masked(values, mask, self._worst(values.dtype)))
            value = self._better(before.value, self._best(kept))
            if before.holders is None:
                return Extremum(value)
            holds = masked(values == value, mask, False)
            own = jnp.where(holds, values, 0).astype(before.holders.dtype)
            holders, count = _of_holders(before, before.value == value)
            return Extremum(value, holders + own.sum(0), count + holds.sum(0, dtype=jnp.int32))

        return jax.tree.map(joined, values, running)

    def across(self, running: object, axis: str) -> Any:
        def joined(own: Extremum) -> Extremum:
            value = self._best(gathered(own.value, axis))
            if own.holders is None:
                return Extremum(value)
            parts = _of_holders(own, own.value == value)
            return Extremum(value, *(sums.over_devices(part, axis) for part in parts))

        return jax.tree.map(joined, running, is_leaf=_is_best)

    def finish(self, running: object, clients: int) -> Any:
        def result(one: Extremum) -> Any:
            return one.value if one.holders is None else _of_equal_shares(*one)

        return jax.tree.map(result, running, is_leaf=_is_best)

    def _best(self, values: Any) -> Any:
        return values.min(0) if self.least else values.max(0)

    def _better(self, first: Any, second: Any) -> Any:
        return (jnp.minimum if self.least else jnp.maximum)(first, second)


class Maximum(Extreme):
    """The maximum over the clients."""

    least = False


def _is_best(part: object) -> bool:
    return isinstance(part, Extremum)


def _of_holders(best: Extremum, still: Any) -> tuple[Any, Any]:
    """Returns `holders` and `count`, set to zero where the value is no longer the extremum."""
    return jnp.where(still, best.holders, 0), jnp.where(still, best.count, 0)


@jax.custom_jvp
def _of_equal_shares(value: object, holders: object, count: object) -> Any:
    """Returns the value, with a derivative that is shared equally among the clients that have
    it.
    """
    return value


@_of_equal_shares.defjvp
def _of_equal_shares_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    value, _, count = primals
    return value, (tangents[1] / count).astype(value.dtype)
