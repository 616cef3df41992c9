"""Allocations: `torch.empty` and similar functions, whose elements are uninitialized, and zeros."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from jax.sharding import Sharding

from calque.device.memory import axis_order, geometry
from calque.device.memory.cell import active, x64
from calque.device.memory.host import check_device, copied
from calque.device.memory.placing import keep_placement, placement_like
from calque.device.memory.wrapping import wrap, wrap_strided
from calque.device.runtime.compile_cache import kept
from calque.device.runtime.dtypes import to_numpy
from calque.device.runtime.placement import host_has_default_device, placed
from calque.device.runtime.shared_contexts import sharing
from calque.device.runtime.sizes import check_fits, translated

_COPIES = 2  # of each kind of array
_MOST_COPIED = 1 << 22  # bytes


def unset(dtype: np.dtype) -> Any:
    """Returns the value of uninitialized elements.

    It is zero or, in eager calls with deterministic algorithms, PyTorch's fill value: NaN, True, or
    the largest integer (`torch.utils.deterministic.fill_uninitialized_memory`). Programs always use
    zero, which is deterministic too.
    """
    if active.trace is not None or not torch.are_deterministic_algorithms_enabled():
        return 0
    if not torch.utils.deterministic.fill_uninitialized_memory:  # type: ignore[attr-defined]
        return 0
    if dtype == np.bool_:
        return True
    return int(np.iinfo(dtype).max) if np.issubdtype(dtype, np.integer) else np.nan


def output_stride(
    tensor: torch.Tensor, memory_format: torch.memory_format | None = torch.preserve_format
) -> geometry.Ints:
    """Returns the strides of a new tensor like this one, in a memory format."""
    shape = tuple(tensor.shape)
    if memory_format is None or memory_format == torch.preserve_format:
        return axis_order.of_copy(shape, tensor.stride())
    if memory_format == torch.contiguous_format:
        return geometry.contiguous_strides(shape)
    return torch.empty(shape, device="meta", memory_format=memory_format).stride()


def empty(
    size: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """`torch.empty`: see `unset`."""
    check_device(device)
    shape = tuple(size)
    array = _made(shape, dtype, None)
    if memory_format is None or memory_format == torch.contiguous_format:
        return wrap(array)
    stride = torch.empty(shape, device="meta", memory_format=memory_format).stride()
    return wrap_strided(array, stride)


def empty_strided(
    size: Any,
    stride: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """`torch.empty_strided`: see `unset`.

    Raises:
        RuntimeError: the numbers of strides and sizes differ.
    """
    if len(size) != len(stride):
        raise RuntimeError(
            f"dimensionality of sizes ({len(size)}) must match dimensionality of strides "
            f"({len(stride)})"
        )
    check_device(device)
    return wrap_strided(_made(tuple(size), dtype, None), tuple(stride))


def _like(fill: Any) -> Callable[..., torch.Tensor]:
    """Returns the kernel of `torch.empty_like` or `torch.zeros_like`.

    Its result has the placement of the tensor if that covers its storage.

    Args:
        fill: the value of all elements; None for `unset`.
    """

    def like(
        self: torch.Tensor,
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> torch.Tensor:
        dtype = self.dtype if dtype is None else dtype
        if layout is not None and layout != torch.strided:
            return torch.empty(self.shape, dtype=dtype, layout=layout, device=device or self.device)
        stride = output_stride(self, memory_format)
        if device is not None and device.type != "jax":
            found = torch.empty_strided(self.shape, stride, dtype=dtype, device=device)
            return found if fill is None else found.fill_(fill)
        check_device(device)
        placement = placement_like(self)
        array = _made(tuple(self.shape), dtype, fill, placement)
        return keep_placement(wrap_strided(array, stride), placement)

    return like


def efficient_zeros(size: Any, **options: Any) -> torch.Tensor:
    """Returns the zeros of forward-mode autograd; on other devices they have no memory."""
    check_device(options.get("device"))
    return wrap(_made(tuple(size), options.get("dtype"), 0))


def _made(
    shape: geometry.Ints, dtype: torch.dtype | None, fill: Any, placement: Sharding | None = None
) -> Array:
    """Returns an array filled with a number; None for `unset`."""
    if any(n < 0 for n in shape):
        raise RuntimeError(f"Trying to create tensor with negative dimension: {list(shape)}")
    numpy = to_numpy(dtype or torch.get_default_dtype())
    fill = unset(numpy) if fill is None else fill
    with translated(), x64():
        if active.trace is None:
            if not host_has_default_device():  # where a failed allocation is noticed later
                check_fits(shape, numpy.itemsize)
            return _maker(shape, numpy, placement, fill)()
        array = jnp.full(shape, fill, numpy)
        return array if placement is None else placed(array, placement)


class _Maker:
    """Creates arrays filled with a number.

    The first arrays of a kind are copied from the host, because most kinds are created only once or
    twice (the state of an optimizer), and compiling a program takes a thousand times as long.
    """

    __slots__ = ("_copies", "_form", "_program")

    def __init__(
        self, shape: geometry.Ints, dtype: np.dtype, fill: Any, placement: Sharding | None
    ) -> None:
        self._form = shape, fill, dtype
        size = math.prod(filter(None, shape)) * dtype.itemsize  # ignores empty axes, like NumPy
        is_small = placement is None and size <= _MOST_COPIED
        self._copies = _COPIES if is_small else 0
        self._program = jax.jit(
            functools.partial(jnp.full, shape, fill, dtype), out_shardings=placement
        )

    def __call__(self) -> Array:
        if self._copies:
            self._copies -= 1
            return copied(np.full(*self._form))
        with sharing:
            return self._program()


@kept
def _maker(
    shape: geometry.Ints, dtype: np.dtype, placement: Sharding | None, fill: object
) -> Callable[[], Array]:
    return _Maker(shape, dtype, fill, placement)


def kernels() -> dict[str, Any]:
    """Returns the kernels of allocations by operator name."""
    return {
        "empty.memory_format": empty,
        "empty_strided": empty_strided,
        "empty_like": _like(None),
        "zeros_like": _like(0),
        "_efficientzerotensor": efficient_zeros,
    }
