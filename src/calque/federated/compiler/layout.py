"""The layout of clients over chunks and devices."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from calque.federated.compiler.planning import lives_on_clients
from calque.federated.ragged import Ragged, is_ragged
from calque.federated.ragged import padded as without_ragged
from calque.federated.types import StructType, Type


@dataclass(frozen=True)
class ClientLayout:
    """The distribution of clients over chunks and devices.

    Attributes:
        clients: the number of clients.
        chunk: the number of clients that a device computes at once.
        mesh, axis: the devices that share the clients; None for one device.
    """

    clients: int
    chunk: int
    mesh: Mesh | None
    axis: str

    @property
    def devices(self) -> int:
        """The number of devices that share the clients."""
        return 1 if self.mesh is None else self.mesh.shape[self.axis]

    @property
    def padded(self) -> int:
        """The number of clients, rounded up to full chunks on every device."""
        whole = self.chunk * self.devices
        return -(-self.clients // whole) * whole


def over_parts(
    held: Any, kind: Type, differing: Callable[[Any], Any], same: Callable[[Any], Any]
) -> Any:
    """Applies one function to the arrays of a held value that differ between clients, and another
    to the rest.

    Args:
        held: the value.
        kind: its type, which has the placement of each part.
        differing: applied to arrays with the clients as leading axis, and to ragged parts.
        same: applied to all others.
    """
    if isinstance(kind, StructType):
        parts = zip(held, kind, strict=True)
        return tuple(over_parts(h, t, differing, same) for h, t in parts)
    return jax.tree.map(differing if lives_on_clients(kind) else same, held, is_leaf=is_ragged)


def of_clients(held: Any, kind: Type, clients: int) -> Any:
    """Returns a held value without padding clients."""

    def cut(leaf: Any) -> Any:
        return leaf if leaf.shape[0] == clients else leaf[:clients]

    return over_parts(without_ragged(held), kind, cut, lambda leaf: leaf)


def padded(leaf: Any, layout: ClientLayout) -> Any:
    """Returns the values of all clients, padded with copies of the first to full chunks.

    Values that are distributed over devices are already padded.
    """
    missing = layout.padded - leaf.shape[0]
    if not missing:
        return leaf
    numpy = np if isinstance(leaf, np.ndarray) else jnp
    first = numpy.broadcast_to(leaf[:1], (missing, *leaf.shape[1:]))
    return numpy.concatenate([leaf, first])


def spread(held: object, kind: Type, layout: ClientLayout) -> Any:
    """Spreads a held argument over the devices of a mesh: each gets its own clients' values.

    Every process of the mesh passes the same argument. Arrays that are already distributed over
    several processes, and traced values, are not changed.
    """
    mesh = layout.mesh
    if mesh is None:
        return held
    over = NamedSharding(mesh, PartitionSpec(layout.axis))
    whole = NamedSharding(mesh, PartitionSpec())

    def shared(leaf: object) -> Any:
        return leaf if is_placed(leaf) else _placed(padded(_host(leaf, mesh), layout), over, mesh)

    def by_client(part: object) -> Any:
        if not isinstance(part, Ragged):
            return shared(part)
        if any(is_placed(leaf) for leaf in jax.tree.leaves(part)):
            return jax.tree.map(shared, part.padded())
        rows = part.over_devices(layout.devices, layout.padded)
        return jax.tree.map(lambda leaf: _placed(leaf, over, mesh), rows)

    def copied(leaf: object) -> Any:
        return leaf if is_placed(leaf) else _placed(_host(leaf, mesh), whole, mesh)

    return over_parts(held, kind, by_client, copied)


def several_processes(mesh: Mesh | None) -> bool:
    """Returns True if some of a mesh's devices belong to another process."""
    return mesh is not None and len({device.process_index for device in mesh.devices.flat}) > 1


def replicated(result: object, mesh: Mesh) -> Any:
    """Marks a traced value as whole on every device."""
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, whole), result)


def of_this_process(result: object) -> Any:
    """Returns replicated arrays as arrays on one of this process's devices, when they are ready.

    A process can compute with these independently of the others. It waits until they are ready,
    because CPUs of several processes deadlock if several programs are in flight.
    """
    own = jax.tree.map(lambda leaf: leaf.addressable_data(0), result)
    return jax.block_until_ready(own)


def is_placed(leaf: Any) -> bool:
    """Returns True if an array is traced or distributed over several processes, and so must not be
    moved.
    """
    if isinstance(leaf, jax.core.Tracer):
        return True
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def _host(leaf: object, mesh: Mesh) -> Any:
    """Returns an array in a form that can be moved to other devices, in whole or in part."""
    return np.asarray(leaf) if several_processes(mesh) else leaf


def _placed(leaf: Any, sharding: NamedSharding, mesh: Mesh) -> Any:
    if not several_processes(mesh):
        return jax.device_put(leaf, sharding)
    return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])
