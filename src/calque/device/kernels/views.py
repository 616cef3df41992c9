"""View operators, which change only the geometry, computed by PyTorch's Meta kernels on our
storages.

All other operators that return views (select, slice, transpose, expand, ...) call `as_strided` or
`view` in C++. Operators that change a tensor's geometry in place are wrapped too, so that every
geometry of a cell is recorded.
"""

from functools import cache
from typing import Any

import torch

from calque.device.kernels import storage
from calque.device.kernels.binding import operator_names, schema_of
from calque.device.memory import geometry
from calque.device.memory.cell import cell_of, moving, regeometries, size_in_bytes
from calque.device.memory.geometry import Layout
from calque.device.memory.moving_views import is_moving
from calque.device.memory.wrapping import META, alias, share
from calque.device.runtime.dtypes import to_numpy
from calque.upstream import torch_c
from calque.upstream.torch_internals import OpOverload

aten: Any = torch.ops.aten
_ATEN = "aten::"
_MARKS_VIEWS = "ADInplaceOrView"
_COMPOSITE = torch_c.DispatchKeySet(torch_c.DispatchKey.CPU)


def _overload(name: str) -> OpOverload:
    packet, _, overload = name.removeprefix(_ATEN).partition(".")
    return getattr(getattr(aten, packet), overload or "default")


@cache
def changes_geometry(op: object) -> bool:
    """Returns True if, by PyTorch's tags, an operator changes its argument's geometry in place.

    It returns False for `set_`, which changes the storage, and `detach_`, which affects only
    autograd.
    """
    if not isinstance(op, OpOverload) or torch.Tag.inplace_view not in op.tags:
        return False
    return op._overloadpacket not in (aten.set_, aten.detach_)


def _gives_views(schema: Any) -> bool:
    """Returns True if the results of an operator are views of its arguments."""
    found = [r.alias_info for r in schema.returns]
    return any(alias is not None and not alias.is_write for alias in found)


def _left_to_devices() -> list[str]:
    """Returns the view operators that have no PyTorch kernel for all devices."""
    of = torch_c.dispatch_get_registrations_for_dispatch_key
    made = set(of("Meta")).difference(
        of("CompositeImplicitAutograd"), of("CompositeExplicitAutograd")
    )
    # Autograd marks views with this key.
    aten = [name for name in made.intersection(of(_MARKS_VIEWS)) if name.startswith(_ATEN)]
    new = [name for name in aten if not name.partition(".")[0].endswith("_")]
    return [name for name in new if _gives_views(schema_of(name))]


def _moved_in_place() -> list[str]:
    """Returns the operators that are in-place forms of views."""
    overloads: dict[str, list[str]] = {}
    for name in operator_names():
        overloads.setdefault(name.partition(".")[0], []).append(name)
    # Views need no kernel for each device.
    computed = set(torch_c.dispatch_get_registrations_for_dispatch_key("CPU"))
    moved = []
    for base, names in overloads.items():
        functional = overloads.get(base[:-1], ()) if base.endswith("_") else ()
        if functional and computed.isdisjoint(names):
            if any(_gives_views(schema_of(each)) for each in functional):
                moved += [name for name in names if changes_geometry(_overload(name))]
    return moved


def as_strided(
    tensor: torch.Tensor, size: object, stride: object, storage_offset: int | None = None
) -> torch.Tensor:
    """Returns a view of the tensor's storage; raises RuntimeError if it exceeds the storage."""
    offset = tensor.storage_offset() if storage_offset is None else storage_offset
    _check_bounds(tensor, size, stride, offset)
    return alias(aten.as_strided.default, tensor, size, stride, offset)


def _check_bounds(tensor: torch.Tensor, size: Any, stride: Any, offset: int) -> None:
    if 0 in size or len(size) != len(stride):
        return
    nbytes = size_in_bytes(cell_of(tensor))
    length = nbytes // tensor.dtype.itemsize
    last = moving().greatest(offset) if is_moving(offset) else offset
    last += sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if last >= length:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and "
            f"itemsize {tensor.dtype.itemsize} requiring a storage size of "
            f"{(last + 1) * tensor.dtype.itemsize} are out of bounds for storage of size "
            f"{nbytes}"
        )


def view_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns the same bytes under a different dtype; raises TypeError for one that JAX lacks."""
    to_numpy(dtype)
    share(tensor)
    return aten.view.dtype.redispatch(_COMPOSITE, tensor, dtype)


def view_as_complex(tensor: torch.Tensor) -> torch.Tensor:
    """Returns pairs of numbers as complex ones; raises TypeError for those of half precision."""
    found = alias(aten.view_as_complex.default, tensor)
    to_numpy(found.dtype)
    return found


def unsafe_view(tensor: torch.Tensor, size: object) -> torch.Tensor:
    """Implements `_unsafe_view`, for which PyTorch's kernel creates an alias without calling the
    device.
    """
    return alias(aten.view.default, tensor, size)


def _aliasing(op: OpOverload) -> Any:
    def kernel(tensor: torch.Tensor, *args: Any) -> torch.Tensor:
        return alias(op, tensor, *args)

    return kernel


def _sharing(op: OpOverload) -> Any:
    def kernel(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        share(tensor)
        return op.redispatch(_COMPOSITE, tensor, *args, **kwargs)

    return kernel


def has_same_storage_numel(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns True if the storages have the same number of elements; forward mode calls it for each
    tangent.
    """
    sizes = [t.untyped_storage().nbytes() // t.itemsize for t in (self, other)]
    return sizes[0] == sizes[1]


def new_zeros_with_same_feature_meta(
    self: torch.Tensor, other: torch.Tensor, **kwargs: Any
) -> torch.Tensor:
    """Returns zeros with the memory layout of `other`, by PyTorch's kernel, which reads its
    storage's size.
    """
    share(other)
    return aten._new_zeros_with_same_feature_meta.default.redispatch(
        _COMPOSITE, self, other, **kwargs
    )


def _in_place(op: OpOverload) -> Any:
    def kernel(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if hasattr(tensor.untyped_storage(), "cell"):  # functionalization's storages have none
            share(tensor)
        regeometries.count += 1
        op.redispatch(_COMPOSITE, tensor, *args, **kwargs)
        return tensor

    return kernel


def set_source_storage_offset(
    tensor: torch.Tensor, source: torch.UntypedStorage, offset: int, size: Any, stride: Any = ()
) -> torch.Tensor:
    """`Tensor.set_` to part of a storage."""
    if stride and len(stride) != len(size):
        raise RuntimeError(f"unequal size length ({len(size)}) and stride length ({len(stride)})")
    if any(step < 0 for step in stride):
        raise RuntimeError(
            f"Storage size calculation overflowed with sizes={list(size)} and "
            f"strides={list(stride)}"
        )
    strides = tuple(stride) or geometry.contiguous_strides(size)
    _prepare(source, tensor, size, strides, offset)
    regeometries.count += 1
    aten.set_.source_Storage_storage_offset.redispatch(META, tensor, source, offset, size, strides)
    return tensor


def set_source_storage(tensor: torch.Tensor, source: torch.UntypedStorage) -> torch.Tensor:
    """`Tensor.set_` to a whole storage, as one axis."""
    length = source.nbytes() // tensor.dtype.itemsize
    return set_source_storage_offset(tensor, source, 0, (length,))


def set_nothing(tensor: torch.Tensor) -> torch.Tensor:
    """`Tensor.set_()`: to a new empty storage."""
    return set_source_storage_offset(tensor, storage.allocate(0), 0, (0,))


def set_source_tensor(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """`Tensor.set_` to another tensor: its storage and its geometry."""
    share(source)
    return set_source_storage_offset(
        tensor,
        source.untyped_storage(),
        source.storage_offset(),
        tuple(source.shape),
        source.stride(),
    )


def _prepare(
    source: torch.UntypedStorage, tensor: torch.Tensor, size: Any, stride: Any, offset: int
) -> None:
    if source.device.type != "jax":
        raise RuntimeError(
            f"Attempted to set the storage of a tensor on device {tensor.device} to a storage on "
            f'different device "{source.device}".  This is no longer allowed; the devices must '
            "match."
        )
    if is_moving(offset):
        moving().refuse()
    cell = storage.cell_of_storage(source)
    length = geometry.extent(size, stride)
    needed = length + offset if length else 0
    if offset >= 0 and needed * tensor.dtype.itemsize > size_in_bytes(cell):
        source.resize_(needed * tensor.dtype.itemsize)  # as PyTorch does for CPU storages
    dense = offset == 0 and geometry.is_dense(size, stride)
    storage.interpret(cell, tensor.dtype, Layout(tuple(size), stride) if dense else None)
    cell.viewed = True


def kernels() -> dict[str, Any]:
    """Returns the view kernels by operator name."""
    return {
        **{n.removeprefix(_ATEN): _aliasing(_overload(n)) for n in _left_to_devices()},
        **{n.removeprefix(_ATEN): _in_place(_overload(n)) for n in _moved_in_place()},
        "as_strided": as_strided,
        "view.dtype": view_dtype,
        "view_as_complex": view_as_complex,
        "_unsafe_view": unsafe_view,
        "set_": set_nothing,
        "set_.source_Storage_storage_offset": set_source_storage_offset,
        "set_.source_Storage": set_source_storage,
        "set_.source_Tensor": set_source_tensor,
        # PyTorch's kernels, which read the storage's size or mark the alias that they create.
        "_conj": _sharing(aten._conj.default),
        "_neg_view": _sharing(aten._neg_view.default),
        "_has_same_storage_numel": has_same_storage_numel,
        "_new_zeros_with_same_feature_meta": new_zeros_with_same_feature_meta,
        "as_strided_scatter": _sharing(aten.as_strided_scatter.default),
    }
