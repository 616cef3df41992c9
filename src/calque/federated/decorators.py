"""`@federated.computation` and `@federated.local`: Python functions become typed computations."""

import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from calque.errors import CalqueError, with_user_frames
from calque.federated.building_blocks import (
    CompiledComputation,
    Lambda,
    Reference,
)
from calque.federated.closures import Closure
from calque.federated.computation import Computation, PolymorphicComputation
from calque.federated.errors import innermost_origin, type_error
from calque.federated.local_functions import Framework, compiled
from calque.federated.packing import Packing, annotated_packing, packing_of
from calque.federated.tracing import fresh, outside, scope, to_block
from calque.federated.tracing.values import Value
from calque.federated.types import (
    FederatedType,
    FunctionType,
    Type,
    walk,
)

_VALUE = f"{Value.__module__}.{Value.__qualname__}"


@with_user_frames
def computation(*types: Any, **named: Any) -> Any:
    """Make a typed federated computation from a Python function.

    Use it as a decorator with the types of the parameters. No types are needed if the function has
    annotations or no parameters. Any other function without types is polymorphic: it is traced
    for the types of the arguments of each call.

    The function is called once, with a symbolic value for each argument, and the operations on
    these are recorded; Python's control flow runs at this time. When the computation is called with
    arrays, it is compiled to one XLA program, and runs.

    Args:
        *types: types of parameters by position, as for `to_type`; a single struct may describe all.
        **named: types of parameters by name.

    Returns:
        A `Computation`, or a `PolymorphicComputation`; with types, a decorator that returns one.

    Raises:
        FederatedTypeError: types or placements do not match; the error shows both, and the line.

    >>> from calque import federated
    >>> @federated.computation("{float32}@CLIENTS", "float32@SERVER")
    ... def above(readings, limit):
    ...     over = readings > federated.federated_broadcast(limit)
    ...     return federated.federated_mean(over * 1.0)
    >>> print(above.type_signature)
    (<readings={float32}@CLIENTS,limit=float32@SERVER> -> float32@SERVER)
    >>> above([10.0, 30.0, 40.0, 50.0], 25.0)
    Array(0.75, dtype=float32)
    """
    return _decorated(_trace, types, named)


@with_user_frames
def local(*types: Any, framework: Framework = "torch", **named: Any) -> Any:
    """Make a typed computation from a function of tensors, written in PyTorch or JAX.

    It is traced by `calque.functional`, or by JAX. A struct is passed as the container that its
    type was made from (or else a dict or a tuple), a sequence as a `federated.Sequence`. Tensors
    that the function closes over, and parameters of a module, are constants.

    Args:
        *types: as for `computation`; types of tensors, structs and sequences.
        framework: "torch" or "jax".
        **named: types of parameters by name.

    Raises:
        FederatedTypeError: a type has a placement, or the function returns no value.

    >>> import torch
    >>> from calque import federated
    >>> @federated.local("float32[3]")
    ... def norm(x):
    ...     return torch.linalg.vector_norm(x)
    >>> print(norm.type_signature)
    (float32[3] -> float32)
    """
    if framework not in ("torch", "jax"):
        raise type_error(f"there is no framework {framework!r}", "Use 'torch' or 'jax'.")
    return _decorated(functools.partial(_compile, framework), types, named)


def _decorated(make: Callable[..., Computation], types: tuple[Any, ...], named: object) -> Any:
    """Returns a decorator or, if it was applied without arguments, the function's computation."""
    if types and _is_function(types[0]):
        function, *rest = types
        return _of_function(make, function, tuple(rest), named)
    decorator = functools.partial(_of_function, make, types=types, named=named)
    return with_user_frames(lambda function: decorator(function))


def _of_function(
    make: Callable[..., Computation], function: Any, types: tuple[Any, ...], named: Any
) -> Any:
    if not callable(function):
        raise type_error(f"{function!r} cannot be called", "Pass a function.")
    if types or named:
        return make(function, packing_of(function, types, named))
    packing = annotated_packing(getattr(function, "forward", function))
    if packing is not None:
        return make(function, packing)

    closure = None if make is _trace else Closure(function)  # local functions check this themselves

    def for_types(types: tuple[Any, ...], named: dict[str, Any]) -> Computation:
        packing = packing_of(function, types, named)
        if closure is None:
            return make(function, packing)
        closure.require_same()
        try:
            return make(function, packing)
        finally:
            closure.note()

    return functools.update_wrapper(PolymorphicComputation(_name(function), for_types), function)


def _trace(function: Any, packing: Packing) -> Computation:
    """Returns a Python function as a lambda."""
    with outside(), scope() as inner:
        name = None if packing.type is None else fresh("arg")
        values = [] if name is None else [Value(Reference(name, _known(packing.type)), inner)]
        args, kwargs = packing.unpack(*values)
        with _values_explained():
            result = function(*args, **kwargs)
        if result is None:
            code = getattr(function, "__code__", None)
            place = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
            raise type_error(
                f"the computation {_name(function)!r}{place} returns None",
                "Return its result.",
            )
        block = Lambda(name, packing.type, inner.closed(to_block(result)))
    made = Computation(_name(function), block, packing)
    functools.update_wrapper(made, function)
    return made


@contextmanager
def _values_explained() -> Iterator[None]:
    """A context manager that replaces errors of functions, such as JAX's, that were passed a
    `Value` and name its class.
    """
    try:
        yield
    except TypeError as error:
        if isinstance(error, CalqueError) or _VALUE not in str(error):
            raise
        raise type_error(
            "a value of a federated computation is passed to a function of arrays",
            "Use Python operators, federated.* or a local function (federated.local; for JAX, with "
            "framework='jax').",
            origin=innermost_origin(error),
        ).with_traceback(error.__traceback__) from None


def _compile(framework: Framework, function: object, packing: Packing) -> Computation:
    """Returns a function of tensors as an opaque computation."""
    for kind in walk(packing.type) if packing.type is not None else ():
        if isinstance(kind, FederatedType | FunctionType):
            raise type_error(
                f"a local function cannot take {kind}",
                "It runs in one place: declare the type of the values there, and use "
                "federated_map.",
            )
    with outside():
        block: CompiledComputation = compiled(function, packing, framework)
    made = Computation(block.name, block, packing)
    if inspect.isfunction(function):
        functools.update_wrapper(made, function)
    return made


def _known(kind: Type | None) -> Type:
    assert kind is not None
    return kind


def _is_function(value: object) -> bool:
    """Returns True for a callable other than classes and `list[int]`, which describe types."""
    is_type = isinstance(value, type | str | Type) or typing.get_origin(value) is not None
    return callable(value) and not is_type


def _name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)
