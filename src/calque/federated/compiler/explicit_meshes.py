"""Arrays that are spread over explicit axes of a mesh, such as those of `jax.make_mesh`.

JAX refuses a pass over clients that are spread over explicit axes. So arguments, the context of a
call and its result are changed to automatic axes and back.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from calque.federated.compiler.layout import is_placed
from calque.federated.errors import type_error


def automatic(mesh: Mesh) -> Mesh:
    """Returns a mesh with automatic axes, over which XLA distributes a pass."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def without_explicit_axes(held: object, mesh: Mesh | None) -> Any:
    """Returns a held argument without arrays that are spread over explicit axes.

    Arrays stay where they are, and so do values that JAX traces, if their devices are known;
    otherwise these become whole on each device.

    Args:
        held: the argument.
        mesh: the devices that share the clients.
    """
    return jax.tree.map(lambda leaf: _without_explicit_axes(leaf, mesh), held)


def _without_explicit_axes(leaf: Any, mesh: Mesh | None) -> Any:
    traced = isinstance(leaf, jax.core.Tracer)
    sharding = getattr(jax.typeof(leaf) if traced else leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding) or (not traced and is_placed(leaf)):
        return leaf
    if not _has_explicit_axes(sharding.mesh):
        return leaf
    known = _devices_of(leaf, mesh)
    if known is None:
        return jax.sharding.reshard(leaf, NamedSharding(sharding.mesh, PartitionSpec()))
    return jax.device_put(leaf, NamedSharding(automatic(known), sharding.spec))


def _devices_of(leaf: Any, mesh: Mesh | None) -> Mesh | None:
    """Returns the mesh over which an array is spread; None if it is not known, as inside `jit`."""
    value = _concrete(leaf)
    if isinstance(value, jax.Array) and isinstance(value.sharding, NamedSharding):
        return value.sharding.mesh if isinstance(value.sharding.mesh, Mesh) else None
    same = mesh is not None and mesh.shape == jax.typeof(leaf).sharding.mesh.shape
    return mesh if same else None


def outside_explicit_mesh() -> AbstractContextManager[object]:
    """A context manager that leaves the explicit mesh of `jax.set_mesh`, if there is one."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not _has_explicit_axes(mesh):
        return nullcontext()
    return jax.sharding.use_abstract_mesh(AbstractMesh((), ()))


def in_context(result: object) -> Any:
    """Returns a result in the form that JAX wants under an explicit mesh of `jax.set_mesh`.

    Raises:
        FederatedTypeError: the result is differentiated, for which JAX has no form there.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not _has_explicit_axes(mesh):
        return result

    def explicit(leaf: Any) -> Any:
        if isinstance(leaf, jax.core.Tracer) and _concrete(leaf) is not None:
            raise type_error(
                "a computation is differentiated under jax.set_mesh of a mesh with explicit axes",
                "Differentiate outside of jax.set_mesh, or make the mesh with "
                "axis_types=(jax.sharding.AxisType.Auto,).",
            )
        traced = isinstance(leaf, jax.core.Tracer)
        own = jax.typeof(leaf).sharding if traced else leaf.sharding
        known = isinstance(own, NamedSharding) and own.mesh.shape == mesh.shape
        over = mesh if traced else jax.sharding.get_mesh()
        return jax.device_put(leaf, NamedSharding(over, own.spec if known else PartitionSpec()))

    return jax.tree.map(explicit, result)


def _has_explicit_axes(mesh: Any) -> bool:
    return any(kind is AxisType.Explicit for kind in mesh.axis_types)


def _concrete(leaf: Any) -> Any:
    """Returns the array with an array's values; None inside `jit`."""
    return leaf.to_concrete_value() if isinstance(leaf, jax.core.Tracer) else leaf
