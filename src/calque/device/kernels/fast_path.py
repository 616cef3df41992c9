"""The fast path for eager calls of a kind that occurred before.

A table maps the description of a call (`arguments`) to XLA's executable and the geometry of the
result. Other calls take the general path, and are added to the table at the third call. The same
holds for in-place and `out=` forms, whose result becomes the array in the cell of the tensor that
they write to. `benchmarks/eager.py` and `benchmarks/ops.py` measure it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from jax.sharding import Sharding

from calque.device.kernels.arguments import (
    Description,
    cell_behind,
    describe,
    is_among,
)
from calque.device.kernels.execution_choice import execution_of, serving, writing
from calque.device.memory.cell import Cell, active, swap, x64
from calque.device.memory.geometry import Ints
from calque.device.memory.wrapping import is_row_major, wrap, wrap_strided
from calque.device.runtime import precision
from calque.device.runtime.compile_cache import Table
from calque.device.runtime.dtypes import to_torch
from calque.device.runtime.in_flight import settled
from calque.device.runtime.placement import spread, together
from calque.device.runtime.sizes import FAILURES, as_out_of_memory, translated
from calque.upstream import torch_c
from calque.upstream.jax_internals import ArrayImpl, debug_infs, debug_nans
from calque.upstream.jax_internals import enable_x64 as _enable_x64
from calque.upstream.torch_internals import tree_leaves

if TYPE_CHECKING:
    from calque.device.kernels.call import Runner

Tensor = torch.Tensor
Kernel = Callable[..., Any]

ADMITTED: Counter[str] = Counter()
"""The number of signatures with an executable on the fast path, by operator."""

_ADMITTED_AT = 3
_CAPACITY = 4096  # kinds of calls to count for one operator
_create = torch_c.acc.create_empty_tensor
_default_dtype = torch.get_default_dtype
_swap, _restore = _enable_x64.swap_local, _enable_x64.set_local
_UNFIT = (TypeError, *FAILURES)  # tracers; deleted arrays, out of memory


class _Executable(NamedTuple):
    """The execution of a kind of call with one result.

    Attributes:
        execute: XLA's executable (see `executable`).
        handlers: create an array from its result.
        shape: the result's shape.
        dtype: the result's dtype.
        stride: the result's strides; None if row-major.
    """

    execute: Any
    handlers: Any
    shape: Ints
    dtype: torch.dtype
    stride: Ints | None


class _Function(NamedTuple):
    """The execution of a kind of call that needs JAX's own call.

    Attributes:
        call: JAX's own call.
        row_major: whether all results are row-major.
        destination: on whose devices it runs (see `together`).
        kinds: the shape and dtype of each result, if all are row-major; else None.
    """

    call: Callable[..., Any]
    row_major: bool
    destination: Sharding | None
    kinds: list[tuple[Ints, torch.dtype]] | None


def wrap_result(result: Any) -> Any:
    """Wraps arrays as tensors, in the same tuples and lists; None stays None."""
    if isinstance(result, tuple | list):
        return type(result)([wrap_result(part) for part in result])
    return None if result is None else wrap(result)


def _kinds(results: Any) -> list[tuple[Ints, torch.dtype]] | None:
    """Returns the shapes and dtypes of an array, or of several; None for anything else."""
    arrays = results if type(results) in (tuple, list) else (results,)
    if any(type(array) is not ArrayImpl or not array.size for array in arrays):
        return None
    return [(array.shape, to_torch(array.dtype)) for array in arrays]


def _wrapped(array: Any, kind: tuple[Ints, torch.dtype]) -> Tensor:
    """Wraps an array as a row-major tensor."""
    tensor = _create(*kind)
    tensor.untyped_storage().cell = Cell(array)  # type: ignore[attr-defined]
    return tensor


class _Calls:
    """The calls of one operator.

    Attributes:
        name: the operator.
        executables: the execution of each kind of call, by description.
    """

    def __init__(self, runner: "Runner", name: str) -> None:
        self.name = name
        self.runner = runner
        self.executables = Table()
        self._counts: dict[Description, int] = {}

    def is_due(self, key: Description, arrays: Sequence[Any]) -> bool:
        """Count a call; returns True if its kind should be added to the table now."""
        # Traced by the user's own jax.jit.
        if any(type(array) is not ArrayImpl for array in arrays):
            return False
        if len(self._counts) >= _CAPACITY:
            self._counts.clear()
        count = self._counts[key] = self._counts.get(key, 0) + 1
        return count == _ADMITTED_AT

    def admit(self, key: Description, served: object) -> None:
        """Use an executable for a kind of call from now on."""
        self.executables.keep(key, served)
        ADMITTED[self.name] += 1


class _Results(_Calls):
    """The calls of an operator that returns new tensors."""

    def __init__(self, runner: "Runner") -> None:
        super().__init__(runner, runner.rule.name)
        self._functions = Table()

    def general(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Runs a call on the general path."""
        return self.runner.wrapped(self.runner(args, kwargs), args, kwargs)

    def serve(
        self, key: Description, arrays: list[Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Runs a call without an executable: by JAX's own call, or on the general path."""
        known = self._functions.get(key)
        if known is None:
            return self._learn(key, arrays, args, kwargs)
        known.used = True
        function = known.value
        if spread.exists:
            together(arrays, function.destination)
        previous = _swap(True)
        try:
            result = settled(function.call(*arrays))
        except TypeError:  # a tracer of another thread's trace
            return self.general(args, kwargs)
        except FAILURES as error:
            raise as_out_of_memory(error) from None
        finally:
            _restore(previous)
        kinds = function.kinds
        if kinds is not None and not spread.exists:
            if type(result) is ArrayImpl:
                return _wrapped(result, kinds[0])
            return type(result)(map(_wrapped, result, kinds))
        if function.row_major:
            return wrap_result(result)
        return self.runner.wrapped(result, args, kwargs)

    def _learn(
        self, key: Description, arrays: list[Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        if not self.is_due(key, arrays):
            return self.general(args, kwargs)
        function, own = self.runner.prepare(args, kwargs)
        with translated(), x64():
            result = settled(function(*own))
        tensors = self.runner.wrapped(result, args, kwargs)
        single = type(result) is ArrayImpl and result.size
        destination = self.runner.destination(args)
        found = execution_of(function, arrays, destination) if single else None
        row_major = [is_row_major(t) for t in tree_leaves(tensors) if t is not None]
        if found is None:
            is_program = hasattr(function, "lower")  # else its results' shapes depend on values
            kinds = _kinds(result) if is_program and all(row_major) else None
            run = precision.following(function)
            self._functions.keep(key, _Function(run, all(row_major), destination, kinds))
        else:
            stride = None if row_major[0] else tensors.stride()
            self.admit(key, _Executable(*found, result.shape, tensors.dtype, stride))
        self.runner.forget(function)
        return tensors


def kernel_of(make: Callable[[], "Runner"]) -> Kernel:
    """Returns the kernel of a functional operator: tensors in, tensors out.

    Args:
        make: creates the runner of the operator's rule, at the first call, because most operators
            are never called.
    """
    calls: _Results | None = None
    dynamic = named = executables = general = serve = cast(Any, None)

    def begin() -> None:
        nonlocal calls, dynamic, named, executables, general, serve
        runner = make()
        begun = _Results(runner)
        dynamic, named, executables = runner.dynamic, runner.named, begun.executables
        general, serve = begun.general, begun.serve
        calls = begun  # last, because other threads read it

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if calls is None:
            begin()
        if active.trace is not None or debug_nans.value or debug_infs.value:
            return general(args, kwargs)
        arrays: list[Any]
        if len(args) == 1 and type(args[0]) is Tensor and not kwargs and not spread.exists:
            cell = getattr(args[0].untyped_storage(), "cell", None)  # as in `describe`
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
                    tensor.untyped_storage().cell = Cell(result)  # type: ignore[attr-defined]
                    return tensor
        arrays = []
        key = describe(args, kwargs, dynamic, named, arrays)
        if key is None:
            return general(args, kwargs)
        found = executables.get(key)
        if found is None:
            return serve(key, arrays, args, kwargs)
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

    return kernel


def in_place(runner: "Runner", name: str, general: Kernel, apart: bool) -> Kernel:
    """Returns the kernel of an operator whose result is written to its first argument.

    If that is a view, the same executable writes the result into the base's array.

    Args:
        runner: returns the result, in the shape and dtype of that argument.
        general: the general kernel, for any call.
        apart: whether the operator may not read the memory that it writes.
    """
    calls, dynamic, named = _Calls(runner, name), runner.dynamic, runner.named
    executables = calls.executables

    def learn(key: Description, arrays: list[Any], args: Any, kwargs: dict[str, Any]) -> Tensor:
        due = calls.is_due(key, arrays)
        function = runner.prepare(args, kwargs)[0] if due else None
        written = general(*args, **kwargs)
        if function is not None and hasattr(function, "lower"):
            calls.admit(key, serving(writing(function, args[0], arrays, reads=True), arrays))
            runner.forget(function)
        return written

    def kernel(*args: Any, **kwargs: Any) -> Tensor:
        if active.trace is not None or debug_nans.value or debug_infs.value:
            return general(*args, **kwargs)
        cell = cell_behind(args[0])
        if cell is None:
            return general(*args, **kwargs)
        if (apart or cell.viewed) and is_among(cell, args[1:], kwargs):
            return general(*args, **kwargs)
        arrays: list[Any] = []
        key = describe(args, kwargs, dynamic, named, arrays)
        if key is None:
            return general(*args, **kwargs)
        found = executables.get(key)
        if found is None:
            return learn(key, arrays, args, kwargs)
        found.used = True
        execute, handlers = found.value
        before = arrays[0]
        try:
            (result,) = execute(arrays).consume_with_handlers(handlers)
        except _UNFIT:
            return general(*args, **kwargs)
        if not swap(cell, before, result):
            return kernel(*args, **kwargs)
        return args[0]

    return kernel


def out_form(
    runner: "Runner",
    name: str,
    general: Kernel,
    apart: bool,
    dtype_kwargs: Callable[[Tensor, dict[str, Any]], dict[str, Any]],
) -> Kernel:
    """Returns the kernel of an `out=` form with one result; like `in_place`, but does not read
    `out`.

    Args:
        dtype_kwargs: returns the keyword arguments of the rule that depend on `out`.
    """
    calls, dynamic, named = _Calls(runner, name), (False, *runner.dynamic), runner.named
    executables = calls.executables

    def learn(
        key: Description, arrays: list[Any], args: Any, kwargs: dict[str, Any], out: Tensor
    ) -> Tensor:
        if not calls.is_due(key, arrays):
            return general(*args, out=out, **kwargs)
        function, own = runner.prepare(args, kwargs | dtype_kwargs(out, kwargs))
        with translated(), x64():
            result = settled(function(*own))
        admitted = hasattr(function, "lower") and _fits(result, out)
        written = general(*args, out=out, **kwargs)  # may raise
        if admitted:
            calls.admit(key, serving(writing(function, out, arrays, reads=False), arrays))
            runner.forget(function)
        return written

    def kernel(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        if active.trace is not None or debug_nans.value or debug_infs.value:
            return general(*args, **_with(out, kwargs))
        cell = cell_behind(out)
        if cell is None or ((apart or cell.viewed) and is_among(cell, args, kwargs)):
            return general(*args, **_with(out, kwargs))
        arrays: list[Any] = []
        key = describe((out, *args), kwargs, dynamic, named, arrays)
        if key is None:
            return general(*args, out=out, **kwargs)
        found = executables.get(key)
        if found is None:
            return learn(key, arrays, args, kwargs, out)
        found.used = True
        execute, handlers = found.value
        before = arrays[0]
        try:
            (result,) = execute(arrays).consume_with_handlers(handlers)
        except _UNFIT:
            return general(*args, out=out, **kwargs)
        if not swap(cell, before, result):
            return kernel(*args, out=out, **kwargs)
        return out

    return kernel


def _fits(result: object, out: Tensor) -> bool:
    """Returns True if a result can be written to an `out=` tensor unchanged."""
    if type(result) is not ArrayImpl or not result.size or result.weak_type:
        return False
    return result.shape == tuple(out.shape) and to_torch(result.dtype) == out.dtype


def _with(out: object, kwargs: dict[str, Any]) -> dict[str, Any]:
    return kwargs if out is None else {**kwargs, "out": out}
