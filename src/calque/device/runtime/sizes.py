"""Refuses sizes that do not fit in memory before XLA, which would end the process.

XLA counts bytes in 64 bits and treats larger shapes as compiler bugs. So every shape in a program
is checked during lowering, for eager operators, `calque.jit` and `torch.compile`. Smaller shapes
may still be too large for the machine, which raises the same error as PyTorch does for
accelerators.
"""

import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn

import jax
import numpy as np
import torch
from jax.interpreters import mlir

from calque.errors import at_user_line

LARGEST = 2**63 - 1
"""The largest supported number of bytes, and the longest axis."""

FATAL = 2**36 if jax.__version_info__ >= (0, 11) else 0
"""XLA's compiler for CPUs divides by zero if a kernel writes a multiple of this number of elements,
because it counts tiles of 16 in 32 bits. 0 for releases without this bug.
"""

FAILURES: tuple[type[Exception], ...] = (jax.errors.JaxRuntimeError, ValueError)
"""The errors that JAX raises if a program cannot be run; `jax.jit` raises ValueError if it waits
for the results.
"""

_fatal_seen = False
_EXHAUSTED = "RESOURCE_EXHAUSTED"
_ALLOCATING = "Out of memory allocating"  # also in errors of programs that use the result
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def check(result: object, made: bool) -> None:
    """Raise if a result is impossible.

    Args:
        result: an array, a "meta" tensor, or any other value, which is ignored.
        made: whether it will be materialized, unlike parts of a program.

    Raises:
        RuntimeError: the number of bytes overflows.
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
    """Returns True if all sizes are numbers, unlike dynamic sizes of an exported program."""
    return all(isinstance(n, int | np.integer) for n in shape)


def check_countable(shape: Sequence[int], itemsize: int) -> None:
    """Raise PyTorch's RuntimeError if the bytes of a shape overflow."""
    sizes = list(map(int, shape))
    if min(sizes, default=0) < 0:  # NumPy's integers have already overflowed
        raise RuntimeError(f"Trying to create tensor with negative dimension: {sizes}")
    if math.prod(sizes) * itemsize > LARGEST or max(sizes, default=0) > LARGEST:
        raise RuntimeError(f"Storage size calculation overflowed with sizes={sizes}")


def check_strides(shape: Sequence[int]) -> None:
    """Raise RuntimeError if the strides of a shape without elements overflow."""
    if math.prod(max(n, 1) for n in shape[1:]) > LARGEST:
        raise RuntimeError("Stride calculation overflowed")


def check_fits(shape: Sequence[int], itemsize: int) -> None:
    """Raise torch.OutOfMemoryError if a single array is larger than all memory."""
    needed, there = math.prod(shape) * itemsize, memory()
    if needed > there:
        raise out_of_memory(
            f"Tried to allocate {byte_count(needed)} for a tensor of shape {list(shape)}; the "
            "device "
            f"has {byte_count(there)} in all."
        )


def is_fatal(shape: Sequence[int]) -> bool:
    """Returns True if XLA's compiler crashes when a kernel writes an array of this shape."""
    if FATAL == 0 or min(shape, default=0) <= 0:
        return False
    return math.prod(shape) % FATAL == 0


def fatal_seen() -> bool:
    """Returns True if anything was lowered in this process that `is_fatal`."""
    return _fatal_seen


def refuse_fatal(shape: Sequence[int]) -> NoReturn:
    """Raise an error for a part of a program that `is_fatal`."""
    if math.prod(shape) > memory():  # with one byte per element
        raise out_of_memory(f"A part of the program computes a tensor of shape {list(shape)}.")
    raise RuntimeError(
        f"a part of the program computes a tensor of shape {list(shape)}; XLA of JAX "
        f"{jax.__version__} ends the process for a multiple of 2**36 elements: compute more or "
        "fewer at a time"
    )


@cache
def memory() -> int:
    """Returns the bytes of the device's memory according to JAX or the system; otherwise the
    largest countable number.
    """
    device = jax.local_devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit")
    if limit is None and device.platform == "cpu":
        limit = _of_the_system()
    return limit or LARGEST


def _of_the_system() -> int | None:
    try:
        with open("/proc/meminfo") as lines:  # includes swap space
            sizes = dict(line.split(":", 1) for line in lines)
        return sum(int(sizes[name].split()[0]) * 1024 for name in ("MemTotal", "SwapTotal"))
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def out_of_memory(what: str) -> torch.OutOfMemoryError:
    """Returns the out-of-memory error, at the user's line."""
    return torch.OutOfMemoryError(at_user_line(f"jax out of memory. {what}"))


def as_out_of_memory(error: Exception) -> Exception:
    """Returns PyTorch's error for JAX's out-of-memory error; other errors unchanged."""
    text = str(error)
    mark = next((mark for mark in (_EXHAUSTED, _ALLOCATING) if mark in text), None)
    if mark is None:
        return error
    translated = text[text.index(mark) :].removeprefix(_EXHAUSTED).strip(": ").partition("\n")[0]
    return out_of_memory(translated.replace(_ALLOCATING, "Tried to allocate"))


class translated:
    """A context manager in which JAX's out-of-memory errors become torch.OutOfMemoryError."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, FAILURES):
            found = as_out_of_memory(error)
            if found is not error:
                raise found from None


def byte_count(count: float) -> str:
    """Returns a number of bytes in PyTorch's format."""
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.2f} {_UNITS[power]}" if power else f"{count:.0f} bytes"


def _checked(types_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def types(aval: Any) -> Any:
        if isinstance(aval.dtype, np.dtype) and _is_known(aval.shape):
            check_countable(aval.shape, aval.dtype.itemsize)
            if is_fatal(aval.shape):
                global _fatal_seen
                _fatal_seen = True
        return types_of(aval)

    return types


def install() -> None:
    """Check every shape that JAX lowers."""
    handlers = mlir.ir_type_handlers
    kind = jax.core.ShapedArray
    handlers[kind] = _checked(handlers[kind])
