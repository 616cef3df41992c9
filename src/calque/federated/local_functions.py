"""Functions of tensors, written in PyTorch or JAX, as building blocks."""

import contextlib
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
import torch
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jax.extend.core import Literal as Constant

from calque.device.memory.cell import read
from calque.errors import TraceError
from calque.federated.building_blocks import CompiledComputation
from calque.federated.closures import Closure
from calque.federated.constants import written_constant
from calque.federated.devices import moved, on_jax
from calque.federated.effects import refuse
from calque.federated.errors import type_error
from calque.federated.local_errors import explained
from calque.federated.ordered_trees import as_records, from_records
from calque.federated.packing import Packing
from calque.federated.representation import (
    shapes_of,
    to_held,
    to_python,
    type_of_held,
)
from calque.federated.types import (
    FunctionType,
    SequenceType,
    StructType,
    TensorType,
    Type,
    join,
    walk,
)
from calque.interop.functional import functional

Framework = Literal["torch", "jax"]

SIZES = (5, 7)
"""The values that are tried for unknown sizes; parts of the result that differ are unknown, too."""


def wide(kind: Type) -> bool:
    """Returns True if a type has 64-bit tensors, which need JAX's 64-bit mode."""
    parts = (part for part in walk(kind) if isinstance(part, TensorType))
    return any(part.dtype.itemsize >= 8 and part.dtype != np.dtype("complex64") for part in parts)


def precision(*kinds: Type | None) -> contextlib.AbstractContextManager[Any]:
    """A context manager for JAX's 64-bit mode, if one of the types has 64-bit tensors; otherwise
    the user's mode.
    """
    if any(kind is not None and wide(kind) for kind in kinds):
        return jax.enable_x64(True)
    return contextlib.nullcontext()


class LocalFunction:
    """A user's function as a function of one held argument, which JAX can trace.

    It always computes what it did when it was defined. If all sizes are known, it is the program
    that was traced then; otherwise, it is traced for each size, and its closure must not have
    changed.

    Args:
        function: a function, or a module.
        packing: the packing of its arguments.
        framework: the framework in which it is written.
    """

    def __init__(self, function: Any, packing: Packing, framework: Framework) -> None:
        self.packing = packing
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self._function = function
        self._call: Callable[..., Any] = function
        self._framework: Framework = framework
        self._closure = Closure(function)
        self._program: tuple[Callable[..., Any], Any] | None = None
        self._kind: Type | None = None
        if framework == "torch":
            apply, params = functional(_with_own_arguments(function))
            apply.settle = refuse

            def call(*args: Any, **kwargs: Any) -> Any:
                named = {name: as_records(value) for name, value in kwargs.items()}
                with on_jax():
                    return from_records(apply(params, *as_records(args), **named))

            self._call = call

    def __call__(self, *held: Any) -> Any:
        """Returns the held result for the held argument, if it has one."""
        if self._program is not None:
            program, structure = self._program
            return jax.tree.unflatten(structure, program(*jax.tree.leaves(held)))
        self._closure.require_same()
        try:
            result = self._result(*held)
            self._require_names(result)
            return to_held(result)
        finally:
            self._closure.note()

    def result_type(self) -> Type:
        """Returns the type of the result, found by tracing the function.

        Raises:
            FederatedTypeError: the result is not a value.
        """
        parameter = self.packing.type
        found: Type | None = None
        for size in SIZES if is_open(parameter) else SIZES[:1]:
            shapes = () if parameter is None else (shapes_of(parameter, size),)
            kind, program = self._traced(shapes)
            found = kind if found is None else join(found, kind)
        assert found is not None
        if not is_open(parameter):
            self._program = program
        self._kind = found
        return found

    def _require_names(self, result: object) -> None:
        """Raise unless the fields of a result have the names found by the first trace, in that
        order.

        Raises:
            FederatedTypeError: they differ for these sizes; shows both types.
        """
        kind = type_of_held(result)
        if self._kind is not None and not _same_names(self._kind, kind):
            raise type_error(
                f"the function {self.name!r} returned {self._kind} when it was traced, but "
                f"{kind} for these arguments",
                "Return the same fields in the same order for all sizes.",
            )

    def _traced(self, shapes: tuple[Any, ...]) -> tuple[Type, tuple[Callable[..., Any], Any]]:
        """Returns the type of the result, the program, and the structure of the held result."""
        found: list[Type] = []
        alone = self.packing.type is None or self.packing.single

        def traced(*fields: Any) -> Any:
            result = self._result(*(fields if alone else (fields,)))
            if result is None:
                raise type_error(f"the function {self.name!r} returns None", "Return its result.")
            found.append(type_of_held(result))
            return to_held(result)

        if inspect.isfunction(self._function):  # JAX's errors then name it and its arguments
            traced = functools.wraps(self._function)(traced)
        try:
            with precision(self.packing.type):
                before = self._closure.now()
                fields = shapes if alone else shapes[0]
                jaxpr, result = jax.make_jaxpr(traced, return_shape=True)(*fields)
                jaxpr = _with_own_arrays(jaxpr)
                self._require_repeatable(before, jaxpr, shapes)
        except RuntimeError as error:
            if not isinstance(error, TraceError) or "random operator" not in str(error):
                raise
            raise type_error(
                f"a random PyTorch operator runs in the local function {self.name!r}, so it "
                "would give the same numbers at every call",
                "Draw them in a JAX local function from the bits of a key, and pass them in.",
            ) from None
        self._closure.note()
        return found[0], (jaxpr_as_fun(jaxpr), jax.tree.structure(result))

    def _require_repeatable(self, before: Any, jaxpr: object, shapes: tuple[Any, ...]) -> None:
        """Raise a `TraceError` if a call changes state that the next call reads.

        For a PyTorch function, `effects` has checked everything but random numbers and iterators.
        """
        path = self._closure.changed(before, of_c=self._framework == "torch")
        if path is None:
            return
        # A new one has no cached trace.
        other = LocalFunction(self._function, self.packing, self._framework)
        again = jax.make_jaxpr(lambda *held: to_held(other._result(*held)))(*shapes)
        if not _same_program(jaxpr, again):
            raise TraceError(
                f"the local function {self.name!r} changes {path!r}, and its next call reads "
                "that. The change would be lost, because the function runs only while it is "
                "traced, not at each call.\nTake such state as an argument, and return it; for "
                "random numbers, take the bits of a key."
            )

    def _result(self, *held: Any) -> Any:
        parameter = self.packing.type
        values = [] if parameter is None else [to_python(held[0], parameter)]
        args, kwargs = self.packing.unpack(*values)
        with explained(self.name, self._framework):
            return self._call(*args, **kwargs)


def compiled(function: object, packing: Packing, framework: Framework) -> CompiledComputation:
    """Returns a user's function as a building block, traced once to find its type.

    Raises:
        FederatedTypeError: the type of a parameter or the result is not a type of tensors.
    """
    local = LocalFunction(function, packing, framework)
    kind = FunctionType(packing.type, local.result_type())
    return CompiledComputation(local.name, local, kind)


def _with_own_arguments(function: Any) -> Any:
    """Returns a function of records that may write to its arguments, because they are copies."""
    if isinstance(function, torch.nn.Module):
        return _OfRecords(function)

    def copied(leaf: object) -> Any:
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = from_records(jax.tree.map(copied, (args, kwargs)))
        return moved(as_records(function(*args, **kwargs)))

    return call


class _OfRecords(torch.nn.Module):
    """A module that takes and returns records, whose parameters are constants."""

    surrounds_the_users_module = True

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = from_records((args, kwargs))
        before = [(parameter, read(parameter)) for parameter in self.parameters()]
        result = moved(as_records(self.module(*args, **kwargs)))
        if any(read(parameter) is not array for parameter, array in before):
            raise written_constant()
        return result


def _with_own_arrays(traced: object) -> Any:
    """Returns a traced program with copies of its constants, since JAX refers to NumPy's arrays."""
    if isinstance(traced, np.ndarray):
        return traced.copy()
    if isinstance(traced, Constant) and isinstance(traced.val, np.ndarray):
        return Constant(traced.val.copy(), traced.aval)
    if isinstance(traced, ClosedJaxpr | Jaxpr):  # the same class in later releases of JAX
        inner = traced.jaxpr if isinstance(traced, ClosedJaxpr) else traced
        steps = [
            step.replace(
                invars=_with_own_arrays(step.invars),
                params={name: _with_own_arrays(value) for name, value in step.params.items()},
            )
            for step in inner.eqns
        ]
        inner = inner.replace(eqns=steps)
        if not isinstance(traced, ClosedJaxpr):
            return inner
        return ClosedJaxpr(inner, _with_own_arrays(traced.consts))
    if type(traced) is list:
        return list(map(_with_own_arrays, traced))
    return tuple(map(_with_own_arrays, traced)) if type(traced) is tuple else traced


def _same_program(first: Any, second: Any) -> bool:
    """Returns True if two traces of a function, including their constants, are the same."""
    texts = [re.sub(r" at 0x[0-9a-f]+", "", str(one.jaxpr)) for one in (first, second)]
    pairs = zip(first.consts, second.consts)
    return texts[0] == texts[1] and all(np.array_equal(a, b, True) for a, b in pairs)


def _same_names(target: Type, source: Type) -> bool:
    """Returns True if the fields of structs have the same names, ignoring unnamed fields of
    `target`.
    """
    if isinstance(target, StructType) and isinstance(source, StructType):
        pairs = zip(target.elements, source.elements)
        return all(n in (None, m) and _same_names(t, s) for (n, t), (m, s) in pairs)
    if isinstance(target, SequenceType) and isinstance(source, SequenceType):
        return _same_names(target.element, source.element)
    return True


def is_open(kind: Type | None) -> bool:
    """Returns True if a type has unknown sizes or lengths."""
    if kind is None:
        return False
    return any(
        not part.is_fully_defined
        if isinstance(part, TensorType)
        else isinstance(part, SequenceType)
        for part in walk(kind)
    )
