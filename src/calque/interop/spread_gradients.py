"""How arrays are spread over explicit axes of a mesh, and gradients that are spread alike."""

from collections.abc import Sequence
from typing import Any

import jax
from jax import Array
from jax.sharding import AxisType, NamedSharding


@jax.tree_util.register_static
class Spread:
    """The shardings of some arrays over explicit axes of a mesh (`jax.make_mesh`, `jax.set_mesh`).

    There a sharding is part of an array's type, which its gradient has to have as well.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._shardings = tuple(_explicit_sharding(array) for array in arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spread) and self._shardings == other._shardings

    def __hash__(self) -> int:
        return hash(self._shardings)

    def like(self, position: int, gradient: Array) -> Array:
        """Returns the gradient of an array, spread as the array is."""
        sharding = self._shardings[position]
        if sharding is None or jax.typeof(gradient).sharding == sharding:
            return gradient
        return jax.sharding.reshard(gradient, sharding)


def _explicit_sharding(array: Any) -> NamedSharding | None:
    sharding = jax.typeof(array).sharding
    if not isinstance(sharding, NamedSharding):
        return None
    return sharding if AxisType.Explicit in sharding.mesh.axis_types else None
