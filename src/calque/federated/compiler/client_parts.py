"""The parts of a held value: those that differ between clients, and those that all clients share.

A pass runs over the parts that differ. Of ragged ones these are the places of the clients'
elements; the elements themselves are rows that all clients of a device share.
"""

from collections.abc import Iterator
from typing import Any

import jax

from calque.federated.compiler.layout import ClientLayout, over_parts
from calque.federated.compiler.planning import lives_on_clients
from calque.federated.ragged import Ragged, is_ragged, over_ragged
from calque.federated.types import StructType, Type


def split(held: Any, kind: Type) -> list[Any]:
    """Returns the parts of a held value that differ between clients (for ragged ones, the
    places).
    """
    if isinstance(kind, StructType):
        return [leaf for h, t in zip(held, kind, strict=True) for leaf in split(h, t)]
    if not lives_on_clients(kind):
        return []
    return [over_ragged(held, lambda part: part.places, lambda leaf: leaf)]


def joined(held: Any, kind: Type, parts: Iterator[Any], layout: ClientLayout) -> Any:
    """Returns a held value in which the parts that differ are replaced by one client's."""
    if isinstance(kind, StructType):
        return tuple(joined(h, t, parts, layout) for h, t in zip(held, kind, strict=True))
    if not lives_on_clients(kind):
        return held

    def of_one(part: Any, own: Any) -> Any:
        return part.at(own, _first_row(part, layout)) if isinstance(part, Ragged) else own

    return jax.tree.map(of_one, held, next(parts), is_leaf=is_ragged)


def _first_row(part: Ragged, layout: ClientLayout) -> Any:
    """Returns the index of a device's first row."""
    if layout.mesh is None:
        return 0
    return jax.lax.axis_index(layout.axis) * jax.tree.leaves(part.elements)[0].shape[0]


def rows_of(held: object) -> list[Any]:
    """Returns the elements of a held value's ragged parts."""
    parts = jax.tree.leaves(held, is_leaf=is_ragged)
    return [part.elements for part in parts if isinstance(part, Ragged)]


def with_rows(held: object, rows: Iterator[Any]) -> Any:
    """Returns a held value in which the elements of ragged parts are replaced."""
    return over_ragged(held, lambda part: part.with_elements(next(rows)), lambda leaf: leaf)


def same_of(held: object, kind: Type) -> list[Any]:
    """Returns the arrays of a held value that are the same for all clients."""
    found: list[Any] = []
    over_parts(held, kind, lambda leaf: leaf, found.append)
    return found


def with_same(held: object, kind: Type, same: Iterator[Any]) -> Any:
    """Returns a held value in which the arrays that are the same for all clients are replaced."""
    return over_parts(held, kind, lambda leaf: leaf, lambda leaf: next(same))
