"""Sizes that no memory holds: told before XLA sees them, which would end the process.

XLA counts bytes in 64 bits and takes a shape whose bytes are more for a mistake in the compiler. So
every shape of a program is looked at while the program is lowered, whoever made it: an eager
operator, `calque.jit`, `torch.compile`. What is not too large to count may still be too large for
the machine; that is raised as PyTorch raises it for accelerators.
"""

import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
import torch
from jax.interpreters import mlir

from calque.errors import user_origin

LARGEST = 2**63 - 1
"""The largest number of bytes, and the longest axis."""

_EXHAUSTED = "RESOURCE_EXHAUSTED"
_ALLOCATING = "Out of memory allocating"  # also in errors of what was computed from the result
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def check(result: Any, made: bool) -> None:
    """Raise where a result cannot be.

    Args:
        result: an array, a tensor of "meta", or anything else, which is left alone.
        made: whether it is to lie in memory as it is; a part of a program need not.

    Raises:
        RuntimeError: its bytes cannot be counted.
        torch.OutOfMemoryError: it is larger than the device's memory.
    """
    if not isinstance(result, jax.Array | torch.Tensor):
        return
    shape, itemsize = tuple(result.shape), getattr(result.dtype, "itemsize", 1)
    if _is_known(shape):
        check_countable(shape, itemsize)
        if made:
            check_fits(shape, itemsize)


def _is_known(shape: Sequence[Any]) -> bool:
    """Returns True if all sizes are numbers: some of an exported program are not until it is
    called.
    """
    return all(isinstance(n, int | np.integer) for n in shape)


def check_countable(shape: Sequence[int], itemsize: int) -> None:
    """Raise RuntimeError where the bytes of a shape overflow, in PyTorch's words."""
    sizes = list(map(int, shape))
    if min(sizes, default=0) < 0:  # NumPy's integers have overflowed already
        raise RuntimeError(f"Trying to create tensor with negative dimension: {sizes}")
    if math.prod(sizes) * itemsize > LARGEST or max(sizes, default=0) > LARGEST:
        raise RuntimeError(f"Storage size calculation overflowed with sizes={sizes}")


def check_strides(shape: Sequence[int]) -> None:
    """Raise RuntimeError where the strides of a shape without elements overflow."""
    if math.prod(max(n, 1) for n in shape[1:]) > LARGEST:
        raise RuntimeError("Stride calculation overflowed")


def check_fits(shape: Sequence[int], itemsize: int) -> None:
    """Raise torch.OutOfMemoryError where an array alone is larger than all memory."""
    needed, there = math.prod(shape) * itemsize, memory()
    if needed > there:
        raise out_of_memory(
            f"Tried to allocate {spoken(needed)} for a tensor of shape {list(shape)}; the device "
            f"has {spoken(there)} in all."
        )


@cache
def memory() -> int:
    """The bytes of the device, where JAX or the system says; else what can be counted."""
    device = jax.local_devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit")
    if limit is None and device.platform == "cpu":
        limit = _of_the_system()
    return limit or LARGEST


def _of_the_system() -> int | None:
    try:
        with open("/proc/meminfo") as lines:  # with what the system would write to disk
            sizes = dict(line.split(":", 1) for line in lines)
        return sum(int(sizes[name].split()[0]) * 1024 for name in ("MemTotal", "SwapTotal"))
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def out_of_memory(what: str) -> torch.OutOfMemoryError:
    """The error for a want of memory, at the user's line."""
    origin = user_origin()
    return torch.OutOfMemoryError(f"{f'{origin}: ' if origin else ''}jax out of memory. {what}")


def as_out_of_memory(error: Exception) -> Exception:
    """An error of JAX as PyTorch's own if memory is what was wanting, else as it is."""
    text = str(error)
    mark = next((mark for mark in (_EXHAUSTED, _ALLOCATING) if mark in text), None)
    if mark is None:
        return error
    told = text[text.index(mark) :].removeprefix(_EXHAUSTED).strip(": ").partition("\n")[0]
    return out_of_memory(told.replace(_ALLOCATING, "Tried to allocate"))


class translated:
    """A context in which a want of memory is raised as torch.OutOfMemoryError."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, jax.errors.JaxRuntimeError):
            told = as_out_of_memory(error)
            if told is not error:
                raise told from None


def spoken(count: float) -> str:
    """A number of bytes as PyTorch speaks of it."""
    power = min(int(math.log2(count)) // 10 if count else 0, len(_UNITS) - 1)
    return f"{count / 2 ** (10 * power):.2f} {_UNITS[power]}" if power else f"{count} bytes"


def _checked(types_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def types(aval: Any) -> Any:
        if isinstance(aval.dtype, np.dtype) and _is_known(aval.shape):
            check_countable(aval.shape, aval.dtype.itemsize)
        return types_of(aval)

    return types


def install() -> None:
    """Look at every shape that JAX lowers."""
    handlers = mlir.ir_type_handlers
    kind = jax.core.ShapedArray
    handlers[kind] = _checked(handlers[kind])
