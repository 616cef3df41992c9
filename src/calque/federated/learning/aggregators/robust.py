"""Robust aggregators: elementwise medians and trimmed means.

They need memory for the values of all clients.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calque.errors import with_user_frames
from calque.federated.decorators import local
from calque.federated.intrinsics import federated_collect, federated_map, federated_zip
from calque.federated.learning.aggregators.basic import by_parts
from calque.federated.learning.aggregators.kinds import Aggregator
from calque.federated.tracing import member_type, type_of


@with_user_frames
def trimmed_mean(fraction: float) -> Aggregator:
    """Returns the unweighted mean without the smallest and largest values, element by element.

    Clients without examples are ignored. Needs memory for the values of all clients (Yin et al.
    2018).

    Args:
        fraction: the fraction of clients removed at either end; at least 0 and below 0.5.
    """
    if not 0 <= fraction < 0.5:
        raise ValueError(f"fraction must be at least 0 and below 0.5, not {fraction}")

    def trimmed(ordered: Any, count: Any) -> Any:
        # A table for all counts, because float32 would round some products up to the next integer.
        left_out = np.floor(fraction * np.arange(len(ordered) + 1)).astype(np.int32)
        first = jnp.asarray(left_out)[count]
        place = _along(jnp.arange(len(ordered)), ordered)
        kept = (place >= first) & (place < count - first)
        return jnp.where(kept, ordered, 0).sum(0) / (count - 2 * first)

    return lambda value, weight, key: _of_all(value, weight, trimmed)


def median() -> Aggregator:
    """Returns the unweighted median of the clients that have examples, element by element.

    Needs memory for the values of all clients.
    """

    def middle(ordered: Any, count: Any) -> Any:
        low, high = (ordered[place] for place in ((count - 1) // 2, count // 2))
        # NaN is sorted last; as in NumPy, a NaN makes the median NaN.
        return jnp.where(jnp.isnan(ordered[count - 1]), jnp.nan, low * 0.5 + high * 0.5)

    return lambda value, weight, key: _of_all(value, weight, middle)


def _of_all(value: Any, weight: Any, function: Callable[[Any, Any], Any]) -> Any:
    """Applies a function to the clients' stacked tensors, on the server.

    Args:
        value, weight: the arguments of the aggregator.
        function: takes a tensor that is sorted along the clients, with those without a weight last,
            and the number of those with a weight, at least 1.
    """
    collected = federated_collect(federated_zip((value, weight)))
    kind = member_type(type_of(collected))

    def joined(sequence: Any) -> Any:
        values, weights = sequence.elements
        absent = ~(weights > 0)
        count = jnp.maximum(jnp.sum(~absent, dtype=jnp.int32), 1)

        def of_one(stacked: Any) -> Any:
            missing = jnp.broadcast_to(_along(absent, stacked), stacked.shape)
            ordered = jax.lax.sort((missing, stacked), dimension=0, num_keys=2)[1]
            return function(ordered, count).astype(stacked.dtype)

        return jax.tree.map(by_parts(of_one), values)

    return federated_map(local(kind, framework="jax")(joined), collected)


def _along(vector: Any, stacked: Any) -> Any:
    """Returns a vector over the clients, with as many axes as `stacked`."""
    return vector.reshape(-1, *[1] * (stacked.ndim - 1))
