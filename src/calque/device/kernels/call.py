"""Runs a rule of the op table on tensors, with one XLA executable for each rule and static
arguments.

The arguments of a call are split into arrays, which the executable takes, and everything else, for
which it is compiled. Under a trace the same executables are called with JAX's tracers, and become
calls inside the traced program.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import torch
from jax import lax
from jax.core import Tracer
from jax.sharding import Sharding
from torch.nn import Parameter

from calque.device.kernels import growing_shapes
from calque.device.kernels.applying import UNUSED, apply, is_unsigned
from calque.device.kernels.argument_slots import SLOT, Slot, Viewed, slot_of, viewed
from calque.device.kernels.arguments import NUMBERS, check_generator, static_number
from calque.device.kernels.fast_path import wrap_result
from calque.device.kernels.meta_check import Outline
from calque.device.kernels.number_arguments import with_numbers
from calque.device.kernels.python_numbers import check_whole_numbers, pinned, without_stand_ins
from calque.device.kernels.remedies import MASK
from calque.device.memory import rng, strides
from calque.device.memory.cell import Cell, active, is_whole, read, x64
from calque.device.memory.host import array_of, check_device, host_array
from calque.device.memory.host_reads import known, without_value
from calque.device.memory.placing import placement_like
from calque.device.runtime import precision, sizes
from calque.device.runtime.addressable import explained
from calque.device.runtime.compile_cache import Table
from calque.device.runtime.dtypes import TO_NUMPY, to_numpy
from calque.device.runtime.in_flight import settled
from calque.device.runtime.placement import run_there, spread, together
from calque.device.runtime.staged_calls import call
from calque.errors import TraceError, unrepeatable
from calque.ops.index.sized_outputs import SIZED
from calque.ops.optim.foreach import PACKED
from calque.ops.table import promotion
from calque.ops.table.facts import fact_of
from calque.ops.table.registry import Rule
from calque.upstream.jax_internals import ArrayImpl

Tensor = torch.Tensor
_ARRAY = object()
_default_dtype = torch.get_default_dtype
_SIZE_ASKED = "counted ({})"


class Runner:
    """Calls one rule.

    Attributes:
        rule: the rule.
        cast: for in-place forms, the index of the tensor argument to whose shape and dtype the
            result is cast; otherwise None.
        outline: checks the arguments of each new kind of call; None if the rule's arguments are not
            those of an operator.
        dynamic: for each parameter, whether its numbers are arguments of the executable.
        named: the same, by the parameter's name.
        traced: the names of those whose numbers are.
        taken: whether the rule takes traced numbers as other parameters, by the kind of call.
        guarded: whether the rule checks each call, or draws a random key.
    """

    __slots__ = (
        "_cache",
        "_lay",
        "_names",
        "cast",
        "dynamic",
        "guarded",
        "named",
        "outline",
        "rule",
        "taken",
        "traced",
    )

    def __init__(
        self,
        rule: Rule,
        traced: frozenset[str],
        cast: int | None = None,
        outline: Outline | None = None,
    ) -> None:
        self.rule: Rule = rule
        self.cast: int | None = cast
        self.outline: Outline | None = outline
        self.traced: frozenset[str] = (traced - rule.static) | rule.dynamic
        self._names = rule.parameters
        self.named: dict[str, bool] = {name: name in self.traced for name in self._names}
        self.dynamic: tuple[bool, ...] = tuple(self.named.values())
        self.guarded: bool | Callable[..., bool] = rule.random or rule.check is not None
        self._cache = Table()
        self.taken: dict[Any, bool] = {}
        self._lay: strides.Layer | type | None = Slot  # set at the first call that needs it

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Returns the arrays that the rule computes for arguments of the operator."""
        function, arrays = self.prepare(args, kwargs)
        try:
            with x64():
                return settled(call(function, arrays))
        except sizes.FAILURES as error:
            found = sizes.as_out_of_memory(error)
            if found is error:
                raise
            raise found from None
        except RuntimeError as error:
            raise explained(error, arrays, f"read by the host ({self.rule.name})") from None
        except TypeError:
            traced = [a for a in arrays if isinstance(a, Tracer)]
            if traced and active.trace is None:
                raise without_value(traced[0].shape) from None
            raise

    def prepare(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Returns the executable for some arguments, and its arrays; called under `x64`."""
        arrays: list[Any] = []
        precision.refresh()
        key: list[Any] = [_default_dtype()]
        if active.trace is not None:
            args, kwargs = without_stand_ins(args, kwargs)
            check_whole_numbers((*args, *kwargs.values()), self.rule.name)
        if self.guarded:
            self._check(args, kwargs, arrays)
        if active.trace is not None:
            args, kwargs = with_numbers(self, args, kwargs)
        for value, name in zip(args, self._names, strict=False):
            key.append(self._split(value, name, arrays))
        for name, value in kwargs.items():
            if name not in UNUSED:
                key.append((name, self._split(value, name, arrays)))
            elif name == "device":
                check_device(value)
        placement = None
        if spread.exists:
            placement = self._placement(args, arrays)
            key.append(placement)
        if active.trace is None:  # nothing is compiled in a trace
            key.append(tuple([a.aval.shape for a in arrays if type(a) is ArrayImpl]))
        hashed = tuple(key)
        entry = self._cache.get(hashed)
        if entry is None:
            if active.trace is None:
                growing_shapes.note(self.rule.name, hashed[-1])
            return self._cache.keep(hashed, self._compile(args, kwargs, placement)).value, arrays
        entry.used = True
        return entry.value, arrays

    def described(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Returns a key for a call, its function, and the kinds of its arrays."""
        arrays: list[Any] = []
        key = [
            self._split(value, name, arrays) for value, name in zip(args, self._names, strict=False)
        ]
        key += [(n, self._split(v, n, arrays)) for n, v in kwargs.items() if n not in UNUSED]
        kinds = [jax.typeof(array) for array in arrays]
        return (*key, *kinds), self._compile(args, kwargs), kinds

    def destination(self, args: Sequence[Any]) -> Sharding | None:
        """Returns the placement that an operator's arguments request; None for most operators."""
        asked = fact_of(self.rule.name).get("destination")
        return None if asked is None else asked(args)

    def forget(self, function: Callable[..., Any]) -> None:
        """Remove an executable from the cache, because its caller keeps it."""
        for key, entry in list(self._cache.items()):
            if entry.value is function:
                self._cache.pop(key, None)

    def wrapped(self, result: object, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Wraps the rule's results for some arguments as tensors (see `strides`)."""
        laid = self.laid(result, args, kwargs)
        return wrap_result(result) if laid is None else strides.wrap_laid(result, iter(laid))

    def laid(self, result: object, args: Sequence[Any], kwargs: dict[str, Any]) -> strides.Strides:
        """Returns the strides of the rule's results for some arguments; None if row-major."""
        lay = self._lay
        if lay is Slot:
            lay = self._lay = strides.layer_of(self.rule.name)
        return None if lay is None else lay(strides.leaves(result), args, kwargs)

    def general(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a kernel for any call of a functional operator: tensors in, tensors out."""
        return self.wrapped(self(args, kwargs), args, kwargs)

    def _check(self, args: Sequence[Any], kwargs: dict[str, Any], arrays: list[Any]) -> None:
        """Run the rule's own check, and draw the key of a random rule."""
        if self.rule.check is not None:
            named = {n: v for n, v in kwargs.items() if n not in UNUSED}
            self.rule.check(dict(zip(self._names, args, strict=False)) | named)
        if self.rule.random:
            check_generator(args, kwargs)
            arrays.append(rng.draw())

    def _split(self, value: Any, name: str, arrays: list[Any]) -> Any:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            return _split_tensor(value, arrays, name)
        if kind in NUMBERS:
            if name in self.traced and not is_unsigned(value):
                arrays.append(value)
                return _ARRAY
            return static_number(value)
        if kind is list or kind is tuple:
            if value and type(value[0]) is int and name not in self.traced:
                return tuple(value)
            return tuple([self._split(item, name, arrays) for item in value])
        if isinstance(value, Tensor):  # a subclass
            return _split_tensor(value, arrays, name)
        if isinstance(value, torch.SymFloat):
            if name not in self.traced:
                return static_number(pinned(value))
            arrays.append(value.node.traced)  # a number traced by calque.jit
            return _ARRAY
        if isinstance(value, Tracer):  # such a number, in a parameter that is no operand
            arrays.append(value)
            return _ARRAY
        return value

    def _placement(self, args: Sequence[Any], arrays: list[Any]) -> Sharding | None:
        """Bring the arrays of a call onto one mesh.

        Returns:
            The placement of an in-place form's result, so that no device computes a whole sharded
            tensor.
        """
        together(arrays, self.destination(args))
        if self.cast is None or self.rule.mutates or active.trace is not None:
            return None
        target = args[self.cast]
        placement = placement_like(target) if isinstance(target, Tensor) else None
        return placement if placement is None or run_there(arrays, placement) else None

    def _compile(
        self, args: Sequence[Any], kwargs: dict[str, Any], placement: Sharding | None = None
    ) -> Callable[..., Any]:
        rule, cast, outline = self.rule, self.cast, self.outline
        names = rule.parameters
        template = [self._template(v, n) for v, n in zip(args, names, strict=False)]
        keywords = {n: self._template(v, n) for n, v in kwargs.items() if n not in UNUSED}
        default = TO_NUMPY[_default_dtype()]
        left = _moved(rule.name, template)

        def run(*arrays: Any) -> Any:
            items = iter(arrays)
            key = next(items) if rule.random else None
            filled = [_fill(part, items) for part in template]
            if left is not None:
                filled[left] = lax.optimization_barrier(filled[left])
            named = {n: _fill(v, items) for n, v in keywords.items()}
            result = apply(rule, key, filled, named, default, outline)
            if cast is None:
                return result
            if rule.mutates:
                return cast_like(result[0], filled[cast]), *result[1:]
            return cast_like(result, filled[cast])

        run.__name__ = run.__qualname__ = rule.name.replace("::", "_").replace(".", "_")
        dependent = rule.data_dependent
        if dependent(*args, **kwargs) if callable(dependent) else dependent:
            return self._dependent(run, template, keywords)
        # Keep the target as an argument even if an in-place form does not read it: the fast path
        # passes it.
        return jax.jit(run, keep_unused=cast is not None, out_shardings=placement)

    def _dependent(
        self, run: Callable[..., Any], template: list[Any], keywords: dict[str, Any]
    ) -> Callable[..., Any]:
        """Returns the function for a rule whose results' shapes depend on values; it requests the
        number of elements.
        """
        rule, outline, cast = self.rule, self.outline, self.cast
        sized = replace(rule, function=SIZED[rule.name])
        default = TO_NUMPY[_default_dtype()]

        def checked(*arrays: Any) -> Any:
            if active.trace is None and active.observer is None:
                return run(*arrays)
            items = iter(arrays)
            filled = [_fill(part, items) for part in template]
            named = {n: _fill(v, items) for n, v in keywords.items()}
            count, results = apply(sized, None, filled, named, default, outline)
            size = known(count, _SIZE_ASKED.format(rule.name), lambda: _sizeless(rule, arrays))
            if active.trace is None:
                return run(*arrays)
            found = results(int(size))
            return found if cast is None else cast_like(found, filled[cast])

        return checked

    def _template(self, value: object, name: str) -> Any:
        if isinstance(value, torch.SymFloat):
            return SLOT if name in self.traced else pinned(value)
        if isinstance(value, Tensor):
            return slot_of(value)
        if isinstance(value, Tracer):
            return SLOT
        if type(value) in NUMBERS and name in self.traced and not is_unsigned(value):
            return SLOT
        if isinstance(value, list | tuple):
            return [self._template(item, name) for item in value]
        return to_numpy(value) if isinstance(value, torch.dtype) else value


def _split_tensor(value: Tensor, arrays: list[Any], name: str) -> Any:
    try:
        cell: Cell = value.untyped_storage().cell
    except AttributeError:
        is_host = name == PACKED and value.device.type == "cpu"
        arrays.append(host_array(value) if is_host else array_of(value))
        return _ARRAY
    if active.trace is not None:
        arrays.append(read(value))
        return _ARRAY
    if not cell.viewed or is_whole(cell, value):
        arrays.append(cell.array)
        return _ARRAY
    slot = viewed(cell, value, arrays)
    if slot is None:
        arrays.append(read(value))
        return _ARRAY
    return slot


def _moved(name: str, template: list[Any]) -> int | None:
    """Returns the position of an operand to make contiguous before the product (`Known.moved`)."""
    place = fact_of(name).get("moved")
    if place is None or len(template) <= place or type(template[place]) is not Viewed:
        return None
    return place if jax.default_backend() == "cpu" else None


def _sizeless(rule: Rule, arrays: Sequence[Any]) -> TraceError:
    given = ", ".join(f"{a.dtype}{list(a.shape)}" for a in arrays if hasattr(a, "shape"))
    return unrepeatable(
        f"{rule.name} of {given}",
        "returns a shape that depends on values, which one XLA program cannot do",
        MASK,
    )


def _fill(template: object, items: Iterator[Any]) -> Any:
    if template is SLOT:
        return next(items)
    if type(template) is Viewed:
        array = next(items)
        return template.read(array, [next(items) for _ in range(template.count)])
    if type(template) is list:
        return [_fill(part, items) for part in template]
    return template


def cast_like(result: Any, target: Any) -> Any:
    """Casts the result of an in-place operator to the shape and dtype of its target.

    In lists, each result is cast to its tensor.

    Raises:
        RuntimeError: the shape or the kind of dtype does not match; the message is PyTorch's.
    """
    if isinstance(result, list):
        return [cast_like(one, to) for one, to in zip(result, target, strict=True)]
    if result.shape != target.shape:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape "
            f"{list(result.shape)}"
        )
    check_castable(result.dtype, target.dtype)
    return result.astype(target.dtype)


def check_castable(source: object, target: object) -> None:
    """Raise RuntimeError if PyTorch refuses to write one dtype to another."""
    low, high = promotion.category(target), promotion.category(source)
    if low < high:
        raise RuntimeError(
            f"result type {promotion.type_name(source)} can't be cast to the desired output type "
            f"{promotion.type_name(target)}"
        )
