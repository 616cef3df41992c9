"""The fast path of eager calls: those of a kind that was called before.

A call is told by the geometry of its tensors and by its other arguments; a table leads from there
to XLA's executable and to the geometry of the result. All that serves a call is in one loop, with
cells and tensors written out; `benchmarks/eager.py` and `benchmarks/ops.py` measure it. What is not
in the table goes the general way, and is admitted to it at its third call.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import torch
from jax._src.array import ArrayImpl
from jax._src.config import debug_infs, debug_nans
from jax._src.config import enable_x64 as _enable_x64
from torch.nn import Parameter
from torch.utils._pytree import tree_leaves

from calque.device.kernels.slots import number_array, viewed
from calque.device.memory.cell import Cell, active, is_whole, wrap, wrap_strided, x64
from calque.device.memory.geometry import Ints
from calque.device.runtime.compile_cache import Table
from calque.device.runtime.executable import Execution, execution
from calque.device.runtime.sizes import as_out_of_memory, translated

if TYPE_CHECKING:
    from calque.device.kernels.call import Runner

Tensor = torch.Tensor
NUMBERS = frozenset((bool, int, float, complex))
_ARRAY = object()
_ADMITTED_AT = 3
_CAPACITY = 4096  # kinds of calls of one operator that are counted
_create = torch._C._acc.create_empty_tensor
_default_dtype = torch.get_default_dtype
_UNFIT = (TypeError, jax.errors.JaxRuntimeError)  # JAX's tracers; deleted arrays, out of memory
_PRECISION = ("dot_general", "convolution")  # what jax.default_matmul_precision speaks to


class _Executable(NamedTuple):
    """How a kind of call with one result is served.

    Attributes:
        execute: XLA's executable (see `executable`).
        handlers: what makes an array of its result.
        shape: the result's shape.
        dtype: the result's dtype.
        stride: the result's strides; None for row-major ones.
    """

    execute: Any
    handlers: Any
    shape: Ints
    dtype: torch.dtype
    stride: Ints | None


class _Function(NamedTuple):
    """How a kind of call is served where only JAX's own call will do.

    Attributes:
        call: JAX's own call.
        row_major: whether all results are row-major.
    """

    call: Callable[..., Any]
    row_major: bool


def wrap_result(result: Any) -> Any:
    """Arrays as tensors, in the same tuples and lists; None stays None."""
    if isinstance(result, tuple | list):
        return type(result)([wrap_result(part) for part in result])
    return None if result is None else wrap(result)


def kernel_of(runner: "Runner") -> Callable[..., Any]:
    """The kernel of a functional operator: tensors in, tensors out."""
    prepare, wrapped, dynamic = runner.prepare, runner.wrapped, runner.dynamic
    executables, functions = Table(), Table()
    counts: dict[tuple[Any, ...], int] = {}
    swap, restore = _enable_x64.swap_local, _enable_x64.set_local

    def general(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return wrapped(runner(args, kwargs), args, kwargs)

    def learn(key: tuple[Any, ...], arrays: list[Any], args: Sequence[Any]) -> Any:
        if any(type(array) is not ArrayImpl for array in arrays):  # the user's own jax.jit
            return general(args, {})
        if len(counts) >= _CAPACITY:
            counts.clear()
        count = counts[key] = counts.get(key, 0) + 1
        function, own = prepare(args, {})
        with translated(), x64():
            result = function(*own)
        tensors = wrapped(result, args, {})
        if count == _ADMITTED_AT:
            single = type(result) is ArrayImpl and result.size
            found = _execution(function, arrays) if single else None
            contiguous = [t.is_contiguous() for t in tree_leaves(tensors) if t is not None]
            if found is None:
                functions.keep(key, _Function(function, all(contiguous)))
            else:
                stride = None if contiguous[0] else tensors.stride()
                served = _Executable(*found, result.shape, tensors.dtype, stride)
                executables.keep(key, served)
            runner.forget(function)
        return tensors

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if kwargs or active.trace is not None or debug_nans.value or debug_infs.value:
            return general(args, kwargs)
        if len(args) == 1 and type(args[0]) is Tensor:  # the loop below, for one whole tensor
            cell = getattr(args[0].untyped_storage(), "cell", None)
            if cell is not None and not cell.viewed:
                array = cell.array
                aval = array.aval
                found = executables.get((_default_dtype(), aval.dtype, aval.shape))
                if found is not None and found.value[4] is None:
                    found.used = True
                    execute, handlers, shape, dtype, _ = found.value
                    try:
                        (result,) = execute([array]).consume_with_handlers(handlers)
                    except _UNFIT:
                        return general(args, kwargs)
                    tensor = _create(shape, dtype)
                    tensor.untyped_storage().cell = Cell(result)
                    return tensor
        arrays: list[Any] = []
        key: list[Any] = [_default_dtype()]
        for value, is_dynamic in zip(args, dynamic):
            kind = type(value)
            if kind is Tensor or kind is Parameter:
                cell = getattr(value.untyped_storage(), "cell", None)
                if cell is None:
                    return general(args, kwargs)
                array = cell.array
                aval = array.aval  # `array.shape` is a Python property
                key.append(aval.dtype)
                key.append(aval.shape)
                if not cell.viewed or (cell.stride is None and is_whole(cell, value)):
                    arrays.append(array)
                    continue
                slot = viewed(cell, value, arrays)
                if slot is None:
                    return general(args, kwargs)
                key.append(slot)
                key.append(value.stride())
            elif kind in NUMBERS:
                if is_dynamic:
                    arrays.append(number_array(kind, value))
                    key.append(kind)
                else:
                    key.append((kind, value))
            elif kind is list and value and type(value[0]) is int and not is_dynamic:
                key.append(tuple(value))
            elif value is None:
                key.append(None)
            else:
                return general(args, kwargs)
        place = tuple(key)
        found = executables.get(place)
        if found is not None:
            found.used = True
            execute, handlers, shape, dtype, stride = found.value
            try:
                (result,) = execute(arrays).consume_with_handlers(handlers)
            except _UNFIT:
                return general(args, kwargs)
            if stride is not None:
                return wrap_strided(result, stride)
            tensor = _create(shape, dtype)
            tensor.untyped_storage().cell = Cell(result)
            return tensor
        known = functions.get(place)
        if known is None:
            return learn(place, arrays, args)
        known.used = True
        function = known.value
        previous = swap(True)
        try:
            result = function[0](*arrays)
        except jax.errors.JaxRuntimeError as error:
            raise as_out_of_memory(error) from None
        finally:
            restore(previous)
        return wrap_result(result) if function[1] else wrapped(result, args, kwargs)

    return kernel


def _execution(function: Callable[..., Any], arrays: list[Any]) -> Execution | None:
    """How to execute what JAX compiles for some arrays; None where JAX's own call must."""
    lower = getattr(function, "lower", None)
    if lower is None:
        return None
    with x64():
        lowered = lower(*arrays)
        text = lowered.as_text()
        if any(name in text for name in _PRECISION):
            return None
        return execution(lowered.compile())
