"""Values that a rule needs unsharded along some axes.

XLA's partitioner handles some operators incorrectly along a sharded axis: transposed convolutions
give wrong numbers, and Fourier transforms end the process. A rule does not know the sharding of its
arrays, so it declares which axes must be whole, and XLA gathers those that are sharded.
"""

from typing import Any

import jax
from jax import Array, lax
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from calque.upstream.jax_internals import ShardingContext, core

undivided_p: core.Primitive = core.Primitive("undivided")
"""The identity, for an array that is not split over devices along `axes`."""


def undivided(x: Array, axes: Any) -> Array:
    """Returns an array that is not sharded along some axes; the sharding of other axes is kept.

    The same holds for its gradient. With one device, this returns the array itself.

    Args:
        x: an array of any shape.
        axes: axes, counted from the front.
    """
    axes = tuple(axes)
    return undivided_p.bind(x, axes=axes) if axes and jax.device_count() > 1 else x


@undivided_p.def_impl
def _same(x: Array, *, axes: tuple[int, ...]) -> Array:
    return x


@undivided_p.def_abstract_eval
def _like(x: Any, *, axes: tuple[int, ...]) -> Any:
    return x


def _lower(context: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
    where = context.module_context.axis_context
    if not isinstance(where, ShardingContext) or where.num_devices == 1:
        return [x]
    # The constraint uses none of this mesh's axes, so it is compatible with the program's mesh.
    mesh = AbstractMesh((where.num_devices,), ("devices",), axis_types=(AxisType.Auto,))
    ndim = context.avals_in[0].ndim
    free = PartitionSpec.UNCONSTRAINED
    spec = PartitionSpec(*(None if axis in axes else free for axis in range(ndim)))
    placement = NamedSharding(mesh, spec)
    whole = mlir.lower_fun(
        lambda x: lax.with_sharding_constraint(x, placement), multiple_results=False
    )
    return whole(context, x)


def _batched(arrays: Any, dims: Any, *, axes: tuple[int, ...]) -> Any:
    (x,), (dim,) = arrays, dims
    moved = tuple(axis + (axis >= dim) for axis in axes)
    return undivided_p.bind(x, axes=moved), dim


mlir.register_lowering(undivided_p, _lower)
batching.primitive_batchers[undivided_p] = _batched
ad.deflinear2(undivided_p, lambda grad, x, *, axes: [undivided_p.bind(grad, axes=axes)])
