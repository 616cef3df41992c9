"""`torch.distributed.checkpoint` of tensors with a placement: parts are written and read
separately.

The checkpoint has PyTorch's own format: CPU models and tensors with other placements can read it. A
part that several devices hold is written once, by the process of the first of them. Reads fill only
the parts of this process, so that processes need not wait for each other.
"""

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import jax
import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import ReadItem, TensorWriteData, WriteItem, WriteItemType

from calque.device.memory.cell import cell_of, x64
from calque.device.memory.host import host_tensor, host_values
from calque.sharding.attributes import OfPlaced
from calque.sharding.placement import placement
from calque.sharding.safetensors_files import BoxIndex
from calque.sharding.safetensors_files import install as install_joining

Offsets = tuple[int, ...]


class _Read(threading.local):
    """The reads of each planner, in each of the threads that read files."""

    def __init__(self) -> None:
        self.of: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


_read = _Read()
_putting_back = threading.Lock()


def _of_placed(name: str, function: Callable[..., Any]) -> OfPlaced:
    """Returns a method that only tensors with a placement have, for PyTorch's `hasattr`."""

    def get(tensor: torch.Tensor) -> Any:
        return None if placement(tensor) is None else function.__get__(tensor)

    return OfPlaced(name, get)


def _offsets(index: Any, shape: Any) -> Offsets:
    return tuple(part.indices(size)[0] for part, size in zip(index, shape, strict=True))


def _owners(array: jax.Array) -> dict[Offsets, int]:
    """Returns the process that writes each part, which is that of the first device with the
    part.
    """
    found: dict[Offsets, Any] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        at = _offsets(index, array.shape)
        if at not in found or device.id < found[at].id:
            found[at] = device
    return {at: device.process_index for at, device in found.items()}


def _own(array: jax.Array) -> dict[Offsets, Any]:
    """Returns the parts on the devices of this process, each once, by their start."""
    return {_offsets(one.index, array.shape): one.data for one in array.addressable_shards}


def _write_items(tensor: torch.Tensor, fqn: str, _: object) -> list[WriteItem]:
    if jax.process_count() > 1 and not torch.distributed.is_initialized():
        raise RuntimeError(
            "torch.distributed.checkpoint in several processes needs a process group, to agree "
            "on which process writes what: call torch.distributed.init_process_group('calque') "
            "first"
        )
    array: Any = cell_of(tensor).array
    owners, own = _owners(array), jax.process_index()
    whole = torch.Size(array.shape)
    return [
        WriteItem(
            index=MetadataIndex(fqn, torch.Size(at)),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(
                chunk=_chunk(at, part),
                properties=TensorProperties.create_from_tensor(tensor),
                size=whole,
            ),
        )
        for at, part in _own(array).items()
        if owners[at] == own
    ]


def _chunk(at: Offsets, part: Any) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(at), sizes=torch.Size(part.shape))


def _chunks(tensor: torch.Tensor) -> list[ChunkStorageMetadata]:
    return [_chunk(at, part) for at, part in _own(cell_of(tensor).array).items()]


def _begin(tensor: torch.Tensor, index: MetadataIndex) -> Offsets:
    return tuple(index.offset) if index.offset is not None else (0,) * tensor.ndim


def _part(tensor: torch.Tensor, index: MetadataIndex) -> torch.Tensor:
    """Returns a copy of a part on the CPU."""
    own, begin = _own(cell_of(tensor).array), _begin(tensor, index)
    if not isinstance(index, BoxIndex):
        return host_tensor(own[begin])
    made = torch.empty(index.sizes, dtype=tensor.dtype, device="cpu")
    for at, part in own.items():
        where = [slice(a - b, a - b + n) for a, b, n in zip(at, begin, part.shape, strict=True)]
        made[tuple(where)] = host_tensor(part)
    return made


def _put_back(tensor: torch.Tensor, begin: Offsets, part: torch.Tensor) -> None:
    """Replace the value of a part on the devices of this process that hold it."""
    cell = cell_of(tensor)
    values = host_values(part).copy()
    with x64(), _putting_back:
        array: Any = cell.array
        parts = [
            jax.device_put(values, one.device)
            if _offsets(one.index, array.shape) == begin
            else one.data
            for one in array.addressable_shards
        ]
        cell.array = jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


METHODS: dict[str, Callable[..., Any]] = {
    "__create_write_items__": _write_items,
    "__create_chunk_list__": _chunks,
    "__get_tensor_shard__": _part,
}


def install() -> None:
    """Make PyTorch's checkpoints support tensors with a placement (a second call does nothing)."""
    if "__create_write_items__" in vars(torch.Tensor):
        return
    install_joining()
    for name, function in METHODS.items():
        setattr(torch.Tensor, name, _of_placed(name, function))
    resolve, commit = DefaultLoadPlanner.resolve_tensor, DefaultLoadPlanner.commit_tensor

    def resolve_tensor(self: Any, read_item: ReadItem) -> Any:
        index = read_item.dest_index
        target = self.state_dict.get(index.fqn)
        if not isinstance(target, torch.Tensor) or not hasattr(target, "__get_tensor_shard__"):
            return resolve(self, read_item)
        part = _part(target, index)
        _read.of[self] = index, target, part
        return self.transform_tensor(read_item, part)

    def commit_tensor(self: Any, read_item: ReadItem, tensor: torch.Tensor) -> None:
        commit(self, read_item, tensor)
        index, target, part = _read.of.pop(self, (None, None, None))
        if target is not None and index == read_item.dest_index:
            _put_back(target, _begin(target, index), part)

    DefaultLoadPlanner.resolve_tensor = resolve_tensor
    DefaultLoadPlanner.commit_tensor = commit_tensor
