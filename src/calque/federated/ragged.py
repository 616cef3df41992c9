"""The sequences of many clients without padding, which need memory only for their elements.

The elements of all clients are concatenated in the same arrays. A client's elements are sliced from
these, padded to the largest length of any client.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calque.federated.representation import Sequence


class ClientPosition(NamedTuple):
    """The position of a client's elements or, with a leading axis, those of many clients.

    Attributes:
        start: the row of the first element, int32.
        length: the number of elements, int32.
    """

    start: Any
    length: Any


@jax.tree_util.register_pytree_node_class
class Ragged:
    """The sequences of many clients, concatenated in the same arrays.

    Attributes:
        elements: a pytree of arrays of shape `[rows, ...]`; rows after the last client's are
            unused.
        places: a `ClientPosition` with the clients as leading axis.
        capacity: the largest number of elements of a client, at least 1.

    >>> ragged = Ragged.of([np.array([1.0, 2.0, 3.0]), np.array([4.0])])
    >>> ragged.length, ragged.padded().elements
    (array([3, 1], dtype=int32), Array([[1., 2., 3.],
           [4., 4., 4.]], dtype=float32))
    """

    def __init__(self, elements: Any, places: ClientPosition, capacity: int) -> None:
        self.elements = elements
        self.places = places
        self.capacity = capacity

    @classmethod
    def of(cls, clients: SequenceOf[Any]) -> "Ragged":
        """Returns the sequences of clients, each given as a pytree of arrays with a leading axis of
        elements.
        """
        lengths = np.array([jax.tree.leaves(one)[0].shape[0] for one in clients], np.int32)
        ends = np.cumsum(lengths, dtype=np.int32)
        rows = _with_room(int(ends[-1]))

        def joined(*leaves: Any) -> Any:
            first = np.asarray(leaves[0])
            whole = np.zeros((rows, *first.shape[1:]), first.dtype)
            np.concatenate(leaves, out=whole[: ends[-1]])
            return jnp.asarray(whole)

        # A client without elements is padded with the first element of all.
        start = np.where(lengths > 0, ends - lengths, 0).astype(np.int32)
        return cls(
            jax.tree.map(joined, *clients),
            ClientPosition(start, lengths),
            max(int(lengths.max()), 1),
        )

    @property
    def length(self) -> Any:
        """The number of elements of each client."""
        return self.places.length

    def take(self, clients: object) -> "Ragged":
        """Returns the sequences of some clients, by number, without copying elements."""
        places = jax.tree.map(lambda leaf: leaf[clients], self.places)
        return Ragged(self.elements, places, self.capacity)

    def at(self, place: ClientPosition, first: Any = 0) -> Sequence:
        """Returns the sequence of one client, padded with copies of its last element.

        Args:
            place: the position of the client's elements.
            first: the number of the arrays' first row, if they are a part of all rows.
        """
        own = jnp.clip(jnp.arange(self.capacity), 0, jnp.maximum(place.length - 1, 0))
        elements = jax.tree.map(lambda leaf: leaf[place.start - first + own], self.elements)
        return Sequence(elements, place.length)

    def over_devices(self, devices: int, clients: int) -> "Ragged":
        """Returns the same sequences with the same number of rows for each device, which contain
        its clients' elements.

        Args:
            devices: the number of devices, which have equal numbers of clients, in order.
            clients: the new number of clients, a multiple of `devices`. Added clients are copies of
                the first client of their device or, if it has none, of the first of all.
        """
        length, start = np.asarray(self.length), np.asarray(self.places.start)
        number, each = np.arange(clients), clients // devices
        first = number // each * each
        added = number >= len(length)
        own = np.where(added, np.where(first < len(length), first, 0), number)
        count = np.where(added & (number != first), 0, length[own])
        by_device = count.reshape(devices, each)
        rows = _with_room(int(by_device.sum(1).max()))
        begin = np.cumsum(by_device, 1) - by_device + rows * np.arange(devices)[:, None]
        begin = np.where(count > 0, begin.reshape(-1), first // each * rows)

        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        taken = np.zeros(devices * rows, np.int64)
        taken[np.repeat(begin, count) + within] = np.repeat(start[own], count) + within
        elements = jax.tree.map(lambda leaf: np.asarray(leaf)[taken], self.elements)
        places = ClientPosition(begin.astype(np.int32), length[own].astype(np.int32))
        return Ragged(elements, places, self.capacity)

    def padded(self) -> Sequence:
        """Returns the padded sequences of all clients, with a leading axis of clients."""
        found = jax.vmap(self.at)(jax.tree.map(jnp.asarray, self.places))
        return Sequence(found.elements, found.length)

    def with_elements(self, elements: object) -> "Ragged":
        """Returns a copy with different arrays, in which clients have the same rows."""
        return Ragged(elements, self.places, self.capacity)

    def tree_flatten(self) -> tuple[tuple[Any, Any], int]:
        """Returns the arrays, for JAX."""
        return (self.elements, self.places), self.capacity

    @classmethod
    def tree_unflatten(cls, capacity: int, parts: tuple[Any, Any]) -> "Ragged":
        """Returns the sequences in different arrays, for JAX."""
        return cls(*parts, capacity)

    def __repr__(self) -> str:
        return f"Ragged({self.elements!r}, {self.places!r}, capacity={self.capacity})"


def take(data: object, clients: object) -> Any:
    """Returns the values of some clients, by number."""
    return over_ragged(data, lambda part: part.take(clients), lambda leaf: leaf[clients])


def padded(held: object) -> Any:
    """Returns a held value with a leading axis of clients in all arrays."""
    return over_ragged(held, Ragged.padded, lambda leaf: leaf)


def over_ragged(held: object, ragged: Callable[[Ragged], Any], other: Callable[[Any], Any]) -> Any:
    """Applies one function to the ragged parts of a held value, and another to its other arrays."""
    return jax.tree.map(
        lambda part: ragged(part) if isinstance(part, Ragged) else other(part),
        held,
        is_leaf=is_ragged,
    )


def is_ragged(part: object) -> bool:
    """Returns True for the sequences of many clients without padding."""
    return isinstance(part, Ragged)


def _with_room(count: int) -> int:
    """Rounds a number up by at most an eighth, to limit the number of programs."""
    step = 1 << max(count.bit_length() - 4, 0)
    return max(-(-count // step) * step, 1)
