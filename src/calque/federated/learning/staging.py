"""Checks the examples of clients, and puts them on the device."""

import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import torch
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch.utils.data import DataLoader, Dataset

from calque.device.backend.interop import to_jax
from calque.errors import ClientError, with_user_frames
from calque.federated.compiler.arguments import hold
from calque.federated.compiler.layout import is_placed
from calque.federated.ragged import Ragged
from calque.federated.representation import Sequence, to_python
from calque.federated.types import DTYPES, SequenceType, Type, at_clients, to_type

Staged = Sequence | Ragged
"""The examples of all clients: with the clients as leading axis, or concatenated."""


def labelled(data: Any) -> Staged:
    """Returns the clients' data in the form of `stage`.

    Raises:
        ClientError: `x` or `y` is missing, or there is an unused field.
    """
    staged = stage(data, padded=False)
    if not isinstance(staged.elements, dict) or not {"x", "y"} <= set(staged.elements):
        fields = staged.elements
        names = sorted(map(str, fields)) if isinstance(fields, dict) else type(fields).__name__
        raise ClientError(
            f"the examples of clients must have x and y, but have {names}.\nPass dicts with "
            "these two keys."
        )
    odd = sorted(set(staged.elements) - {"x", "y"}, key=str)
    if odd:
        raise ClientError(
            f"the examples of clients have unused fields: {', '.join(map(str, odd))}.\nPass "
            "dicts with x and y. For several inputs of the module, make x a dict; for inputs of "
            "the loss beside the labels, such as weights, make y a dict."
        )
    return staged


@with_user_frames
def stage(data: object, padded: bool = True) -> Any:
    """Puts the examples of all clients on the device as arrays, for many rounds.

    Args:
        data: a list with, for each client, a dict of arrays with a leading axis of examples, or a
            `torch.utils.data.Dataset` of pairs of `x` and `y`, or of dicts.
        padded: whether to pad each client to the most examples that a client has.

    Returns:
        A `federated.Sequence` whose arrays have an axis of clients, then one of examples, padded to
        the most that a client has. If `padded` is False and clients have different numbers of
        examples, a `federated.Ragged`, which needs memory only for the examples.

    >>> import numpy as np
    >>> staged = stage([{"x": np.ones((2, 3), np.float32)}, {"x": np.ones((1, 3), np.float32)}])
    >>> staged.elements["x"].shape, staged.length.tolist()
    ((2, 2, 3), [2, 1])
    """
    if isinstance(data, Ragged):
        return data.padded() if padded else data
    if isinstance(data, Sequence):
        return data
    if not isinstance(data, list | tuple):
        raise ClientError(
            f"the data must be a list with the examples of each client, not {type(data).__name__}."
        )
    if not data:
        raise ClientError("there are no clients.\nPass a list with the examples of each client.")
    clients = _without_gaps([_examples(one, number) for number, one in enumerate(data)])
    element = element_type(clients[0], leading=1)
    kind = SequenceType(element)
    held = hold(clients, at_clients(kind), "the data")
    if not isinstance(held, Ragged):
        return to_python(held, kind)
    found = held.with_elements(to_python(held.elements, element))
    return found.padded() if padded else found


@with_user_frames
def stage_own(data: object, mesh: Mesh, axis: str | None = None) -> Sequence:
    """Like `stage`, but each process of a mesh passes only the examples of its own clients.

    No process holds the data of all clients. The clients of the first process come first. Use it
    with learning processes and evaluations on the same mesh, and all clients in each round.

    Args:
        data: as for `stage`; each process passes the same number of clients, a multiple of the
            number of its devices.
        mesh: the mesh of all processes.
        axis: the axis over which the clients are distributed; the first by default.

    Raises:
        ClientError: the processes have different numbers of clients, or their devices cannot share
            the clients evenly.
    """
    staged = stage(data)
    axis = axis or str(mesh.axis_names[0])
    own = np.array(
        [
            len(staged.length),
            jax.tree.leaves(staged.elements)[0].shape[1],
            mesh.shape[axis] // jax.process_count(),
        ]
    )
    found = np.asarray(multihost_utils.process_allgather(own)).reshape(-1, 3)
    counts, capacities, devices = found.T
    if len(set(counts.tolist())) > 1 or counts[0] % max(devices[0], 1):
        raise ClientError(
            f"the processes have {counts.tolist()} clients, for {devices[0]} devices each.\nGive "
            "each process the same number of clients, a multiple of its number of devices."
        )
    sharding = NamedSharding(mesh, PartitionSpec(axis))

    def spread(leaf: Any) -> Any:
        missing = [(0, 0), (0, capacities.max() - leaf.shape[1]), *[(0, 0)] * (leaf.ndim - 2)]
        return jax.make_array_from_process_local_data(sharding, np.pad(np.asarray(leaf), missing))

    lengths = multihost_utils.process_allgather(np.asarray(staged.length))
    return Sequence(jax.tree.map(spread, staged.elements), np.asarray(lengths).reshape(-1))


def _examples(data: object, client: int) -> Any:
    """Returns a client's dataset as arrays with a leading axis of examples; other data unchanged.

    Returns None for a dataset without examples, whose structure is not known.

    Raises:
        ClientError: a dataset has no length, or examples that cannot be stacked.
    """
    if isinstance(data, DataLoader):
        raise ClientError(
            f"the data of client {client} are a DataLoader, but the process makes the batches.\n"
            "Pass the dataset: loader.dataset."
        )
    if not isinstance(data, Dataset):
        return data
    if not hasattr(data, "__len__"):
        raise ClientError(
            f"the dataset of client {client} has no length.\n"
            "Pass datasets with __len__ and __getitem__, or dicts of arrays."
        )
    if not len(data):  # type: ignore[arg-type]
        return None
    rows = [data[index] for index in range(len(data))]  # type: ignore[arg-type]
    rows = [{"x": row[0], "y": row[1]} if _is_pair(row) else row for row in rows]
    try:
        return jax.tree.map(lambda *leaves: np.stack([_on_host(one) for one in leaves]), *rows)
    except ValueError as error:
        raise ClientError(
            f"the examples of client {client} differ in structure, shape or dtype: {error}"
        ) from None


def _on_host(leaf: object) -> np.ndarray:
    """Returns a part of an example as an array; tensors may be on any device."""
    return np.asarray(to_jax(leaf.detach()) if isinstance(leaf, torch.Tensor) else leaf)


def _without_gaps(clients: list[Any]) -> list[Any]:
    """Returns the examples of clients, with empty arrays for those that are None.

    Raises:
        ClientError: no client has examples.
    """
    known = next((one for one in clients if one is not None), None)
    if known is None:
        raise ClientError("no client has examples.\nPass a list with the examples of each client.")
    if all(one is not None for one in clients):
        return clients
    none = jax.tree.map(lambda leaf: np.asarray(leaf)[:0], known)
    return [none if one is None else one for one in clients]


def digest_of(staged: Staged) -> str:
    """Returns a digest of the clients' examples.

    For examples that are distributed over several processes, it includes only their types and
    numbers.
    """
    length = np.asarray(staged.length)
    found = hashlib.sha256(f"{element_of(staged)} {length.tolist()}".encode())
    leaves = jax.tree.leaves(staged.elements)
    if not any(map(is_placed, leaves)):
        for leaf in leaves:
            for client, rows in _rows_of(staged, np.asarray(leaf)):
                found.update(rows[: length[client]].tobytes())
    return found.hexdigest()[:12]


def _rows_of(staged: Staged, leaf: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields for each client the number of its examples, and the rows of an array that begin with
    them.
    """
    starts = staged.places.start if isinstance(staged, Ragged) else None
    for client in range(staged.length.shape[0]):
        yield client, leaf[client] if starts is None else leaf[int(starts[client]) :]


def capacity_of(staged: Staged) -> int:
    """Returns the number of examples to which clients are padded."""
    if isinstance(staged, Ragged):
        return staged.capacity
    return jax.tree.leaves(staged.elements)[0].shape[1]


def element_of(staged: Staged) -> Type:
    """Returns the type of an example of staged data."""
    return element_type(staged.elements, leading=1 if isinstance(staged, Ragged) else 2)


def _is_pair(row: object) -> bool:
    return isinstance(row, tuple | list) and len(row) == 2


def element_type(arrays: object, leading: int = 2) -> Type:
    """Returns the type of an example, from arrays with leading axes; 64-bit dtypes become 32-bit,
    as in JAX.

    Raises:
        ClientError: a part of it is not an array, or has a dtype that tensors do not support.
    """
    for leaf in jax.tree.leaves(arrays, is_leaf=lambda leaf: leaf is None):
        if not hasattr(leaf, "shape"):
            what = "no arrays"
        elif _narrow(leaf.dtype) not in DTYPES:
            what = f"of dtype {leaf.dtype}, which no tensor has"
        else:
            continue
        raise ClientError(f"the examples of client 0 are {what}.\nPass a dict of arrays, x and y.")
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[leading:], _narrow(a.dtype)), arrays)
    return to_type(one)


def _narrow(dtype: object) -> Any:
    name = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    return {"float64": "float32", "int64": "int32"}.get(name, name)
