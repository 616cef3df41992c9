"""The parts of tensors that this process holds, and batches made of the rows of all processes."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import torch
from jax.sharding import Mesh, NamedSharding

from calque.device.kernels.copies import no_value
from calque.device.memory.cell import active, read, x64
from calque.device.memory.host import host_tensor, host_values
from calque.device.memory.wrapping import wrap
from calque.device.runtime import one_program, replicated_values
from calque.device.runtime.placement import spread
from calque.launching import communication
from calque.sharding.arguments import check_batches, check_spec, check_tensor
from calque.sharding.mesh import P, Spec, mesh_or_latest, sharding_of
from calque.upstream.torch_internals import tree_map


class Part(NamedTuple):
    """The part of a tensor that one device holds.

    Attributes:
        device: JAX's device.
        index: the position of the part: a slice for each dimension.
        value: its values, as a CPU tensor.
    """

    device: Any
    index: tuple[slice, ...]
    value: torch.Tensor


def local(tensor: torch.Tensor) -> list[Part]:
    """Returns the parts of a tensor that the devices of this process hold.

    Args:
        tensor: a tensor on the device "jax", of any shape.

    Returns:
        A part for each device, in the order of the devices' numbers. Each has the shape
        `placement(tensor).local_shape`.

    Raises:
        TypeError: the argument is not a tensor.
        ValueError: the tensor is not on the device.
        TraceError: in a traced function, where the tensor has no value yet.

    >>> import torch
    >>> from calque import sharding
    >>> everyone = sharding.mesh(dp=-1)
    >>> x = sharding.shard(torch.ones(8, 2, device="jax"), sharding.P())
    >>> sharding.local(x)[0].value.shape
    torch.Size([8, 2])
    """
    check_tensor("local", tensor, on_device=True)
    if active.trace is not None:
        raise no_value(tensor, "passed to calque.sharding.local")
    array = read(tensor.detach())
    shards = sorted(array.addressable_shards, key=lambda one: one.device.id)
    return [Part(one.device, one.index, host_tensor(one.data)) for one in shards]


def loader(
    batches: Iterable[Any], spec: Spec | None = None, mesh: Mesh | None = None
) -> Iterator[Any]:
    """Turns batches of CPU tensors into batches on the mesh.

    With several processes, each supplies its own rows, and the batch consists of the rows of all.

    Args:
        batches: a `DataLoader`, or any other iterable of tensors and containers of them. Values
            that are not tensors, and zero-dimensional tensors, are passed on as they are.
        spec: how the tensors are split, such as `P("dp")`; by default their first dimension is
            split over the first axis of the mesh.
        mesh: the mesh; by default the one created last.

    Returns:
        An iterator of the same containers.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a batch cannot be split evenly; use a DataLoader with `drop_last=True`.
        RuntimeError: the processes have different numbers of rows.

    >>> import torch
    >>> from calque import sharding
    >>> everyone = sharding.mesh(dp=-1)
    >>> [x.device.type for x in sharding.loader([torch.zeros(8, 3)], sharding.P())]
    ['jax']
    """
    check_batches(batches)
    if spec is not None:
        check_spec(spec)
    where = mesh_or_latest(mesh)
    found = P(where.axis_names[0]) if spec is None else spec

    def put(leaf: object) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.ndim:
            return leaf
        return joined(leaf, found, where)

    return (tree_map(put, batch) for batch in batches)


def joined(tensor: torch.Tensor, spec: Spec, mesh: Mesh, or_whole: bool = False) -> torch.Tensor:
    """Returns the rows of all processes as one tensor on the mesh.

    Args:
        tensor: the rows of this process; the shape must be the same in each process.
        spec: how all rows are split.
        mesh: the mesh.
        or_whole: whether to replicate rows that cannot be split evenly.

    Raises:
        ValueError: they cannot be split evenly.
        DisagreementError: the processes have tensors of different shapes.
    """
    if not tensor.ndim or _spans(tensor):
        return tensor
    count = jax.process_count()
    shape = (tensor.shape[0] * count, *tensor.shape[1:])
    values = host_values(tensor.detach().cpu()).copy()
    if count > 1 and one_program.is_installed():
        replicated_values.check_shapes(values)
    try:
        sharding = sharding_of(spec, shape, mesh)
    except ValueError as error:
        if not or_whole:
            raise ValueError(f"{error}; drop_last=True leaves out a smaller last batch") from None
        sharding = NamedSharding(mesh, P())
    spread.exists = True
    with x64():
        return wrap(_from_rows(values, sharding, shape))


def _spans(tensor: torch.Tensor) -> bool:
    """Returns True if a tensor already spans all processes."""
    return tensor.device.type == "jax" and replicated_values.spans(read(tensor.detach()).sharding)


def _from_rows(values: Any, sharding: NamedSharding, shape: tuple[int, ...]) -> jax.Array:
    """Returns an array of the rows of all processes, without communication if that is possible."""
    if jax.process_count() == 1:
        return jax.make_array_from_process_local_data(sharding, values, shape)
    rows = values.shape[0]
    first = jax.process_index() * rows
    if not _needs_own_rows_only(sharding, shape, rows):
        values, first = communication.of_all(values).reshape(shape), 0

    def part(index: Any) -> Any:
        begin, end, _ = index[0].indices(shape[0])
        return values[(slice(begin - first, end - first), *index[1:])]

    return jax.make_array_from_callback(shape, sharding, part)


def _needs_own_rows_only(sharding: NamedSharding, shape: tuple[int, ...], rows: int) -> bool:
    """Returns True if each device only holds rows that its own process supplied."""
    for device, index in sharding.devices_indices_map(shape).items():
        begin, end, _ = index[0].indices(shape[0])
        first = device.process_index * rows
        if begin < first or end > first + rows:
            return False
    return True
