"""Handles arguments of index operators that rules cannot: masks, indices on the CPU, and bounds.

PyTorch allows index tensors on the CPU and masks instead of positions, and raises for an index out
of range. Positions and bounds depend on values, so they are checked here, before the rule runs.
Bounds are checked if the host can read an index without a copy. On an accelerator, that would wait
for the device, so a read out of range gives NaN instead, as in a jitted function.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from calque.device.kernels import trace_checks
from calque.device.kernels.binding import functional, in_place
from calque.device.kernels.checked_tensors import host_view, seen
from calque.device.kernels.copies import no_value
from calque.device.kernels.remedies import MASK
from calque.device.memory import strides
from calque.device.memory.cell import active, read, x64
from calque.device.memory.host import host_array
from calque.device.memory.host_reads import known
from calque.device.memory.wrapping import wrap, wrap_strided
from calque.device.runtime.addressable import values as on_host
from calque.errors.warning import warn
from calque.ops.index.index_put import check_mask
from calque.ops.index.sized_outputs import positions
from calque.ops.table.registry import RULES
from calque.ops.table.tensor_argument import INDEX, within_dim

Tensor = torch.Tensor
_MASKS = frozenset((torch.bool, torch.uint8))
_BYTES = "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."
_POSITIONS = "used as a mask whose positions are needed"


def _on_device(index: Tensor | None) -> Tensor | None:
    if index is None or index.device.type == "jax":
        return index
    if index.device.type != "cpu":
        raise RuntimeError(
            "indices should be either on cpu or on the same device as the indexed tensor"
        )
    return wrap(host_array(index))


def _positions_of(mask: Tensor, self: Tensor, dim: int, implied: int | None) -> list[Tensor]:
    """Returns the index tensors for a mask, one for each of its axes."""
    check_mask(tuple(self.shape), dim, tuple(mask.shape))
    array = read(mask)
    if implied is not None and mask.ndim:
        return _as_many(array, implied)
    size = _size_of(mask, array)
    with x64():
        if mask.ndim == 0:
            return [wrap(jnp.zeros(size, np.int64))]
        if active.trace is not None:
            return [wrap(part) for part in positions(array, size)]
        return [wrap(jnp.asarray(part)) for part in np.nonzero(on_host(array, _POSITIONS))]


def _implied(indices: Sequence[Tensor | None]) -> int | None:
    """Returns the number of positions of a traced mask that follows from the index tensors beside
    it; None if it is open. A mask may also have a single position, which is broadcast.
    """
    if active.trace is None:
        return None
    beside = [tuple(i.shape) for i in indices if i is not None and not _is_mask(i)]
    try:
        *_, size = (1, *np.broadcast_shapes(*beside))
    except ValueError:  # the rule raises its own error
        return None
    return None if size == 1 else size


def _as_many(mask: Array, size: int) -> list[Tensor]:
    """Returns the positions of a mask that has `size` positions, or one."""
    with x64():
        count = jnp.count_nonzero(mask)
        mismatch = "shape mismatch: indexing tensors could not be broadcast together with shapes "
        trace_checks.collect(
            (count != size) & (count != 1),
            count,
            lambda found: IndexError(f"{mismatch}[{found}], [{size}]"),
        )
        found = positions(mask, size)
        if size:
            found = [jnp.where(count == 1, part[0], part) for part in found]
        # Otherwise indices are out of range: reads give NaN, writes are dropped.
        fits = (count == size) | (count == 1)
        found = [jnp.where(fits, part, n) for part, n in zip(found, mask.shape, strict=True)]
        return [wrap(part) for part in found]


def _size_of(mask: Tensor, array: Array) -> int:
    """Returns the number of positions at which a mask is set."""
    if active.trace is None and active.observer is None:
        return int(np.count_nonzero(on_host(array, _POSITIONS)))
    use = "used as an index whose number of positions is needed"
    with x64():
        count = jnp.count_nonzero(array)
    return int(known(count, use, lambda: no_value(mask, use, MASK)))


def _expand(self: Tensor, indices: Sequence[Tensor | None]) -> tuple[Tensor, list[Tensor | None]]:
    """Returns the indices with masks converted to positions; a 0-d mask adds an axis to the indexed
    tensor.
    """
    result: list[Tensor | None] = []
    implied = _implied(indices)
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            result.append(index)
            continue
        if index.dtype is torch.uint8:
            warn(_BYTES)
        if index.ndim == 0:
            self = self.unsqueeze(len(result))
        result.extend(_positions_of(index, self, len(result), implied))
    return self, result


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in _MASKS


def _check(self: Tensor, indices: Sequence[Tensor | None]) -> None:
    """Raise IndexError for an index out of range, if the values are known.

    Like PyTorch, it does not check if an index tensor has no elements, because nothing is read.
    """
    if not trace_checks.looking() or len(indices) > self.ndim:
        return
    if any(index is not None and not index.numel() for index in indices):
        return
    for dim, index in enumerate(indices):
        if index is None or _is_mask(index):
            continue
        if not self.shape[dim]:
            raise IndexError("index is out of bounds for dimension with size 0")
        if self.numel():
            _in_range(self=seen(self), dim=dim, index=seen(index))


_in_range = within_dim(IndexError, INDEX, negative=True)


# index --------------------------------------------------------------------------------------------

_index = functional(RULES["aten::index.Tensor"])


def index(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Returns `self[indices]`; a mask needs values, so in a trace it is an error that names the
    line.
    """
    indices = [_on_device(i) for i in indices]
    if any(map(_is_mask, indices)):
        self, indices = _expand(self, indices)
        found = _through_host(self, indices)
        if found is not None:
            return found
    _check(self, indices)
    return _index(self, indices)


def _through_host(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor | None:
    """Runs a masked read on the host, because each new number of elements would need a new
    executable.
    """
    if len(indices) > self.ndim or self.numel() == 0:
        return None
    values = host_view(read(self))
    keys = [slice(None) if i is None else host_view(read(i)) for i in indices]
    if values is None or any(key is None for key in keys):
        return None
    _check(self, indices)
    with x64():
        found = jnp.asarray(values[tuple(keys)])
    laid = strides.followed("aten::index.Tensor", [found], (self, indices), {})
    return wrap(found) if laid is None else wrap_strided(found, next(iter(laid)))


# index_put ----------------------------------------------------------------------------------------


def _one_mask(self: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> bool:
    """Returns True if the rule can write through the mask directly (see `ops.scatter`)."""
    present = [i for i in indices if i is not None]
    if len(present) != 1 or not _is_mask(present[0]):
        return False
    mask, dim = present[0], next(d for d, i in enumerate(indices) if i is not None)
    if mask.ndim == 0:
        return False
    trailing = self.ndim - dim - mask.ndim
    at = values.ndim - 1 - trailing
    if active.trace is None and at >= 0 and values.shape[at] != 1:
        check_mask(tuple(self.shape), dim, tuple(mask.shape))
        chosen = int(np.count_nonzero(on_host(read(mask), _POSITIONS)))
        if values.shape[at] != chosen:
            shape = [*self.shape[:dim], chosen, *self.shape[dim + mask.ndim :]]
            raise RuntimeError(
                f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast "
                f"to indexing result of shape {shape}"
            )
    if mask.dtype is torch.uint8:
        warn(_BYTES)
    return True


def _put(rule: str, name: str | None = None) -> Callable[..., Tensor]:
    """Returns the kernel of an index_put; `name` is the name of its in-place form."""
    found = RULES[f"aten::{rule}"]
    kernel = functional(found) if name is None else in_place(f"aten::{name}", found)

    def put(
        self: Tensor, indices: Sequence[Tensor | None], values: Tensor, *rest: Any, **named: Any
    ) -> Tensor:
        indices = [_on_device(i) for i in indices]
        if values.ndim == 0 and values.device.type == "cpu":
            values = wrap(host_array(values))
        target = self
        if any(map(_is_mask, indices)) and not _one_mask(self, indices, values):
            target, indices = _expand(self, indices)
        _check(target, indices)
        result = kernel(target, indices, values, *rest, **named)
        if target is self:
            return result
        return self if name is not None else result.reshape(self.shape)

    return put


def kernels() -> dict[str, Any]:
    """Returns the index kernels by operator name."""
    return {
        "index.Tensor": index,
        "index_put": _put("index_put"),
        "index_put_": _put("index_put", "index_put_"),
        "_index_put_impl": _put("_index_put_impl"),
        "_index_put_impl_": _put("_index_put_impl", "_index_put_impl_"),
    }
