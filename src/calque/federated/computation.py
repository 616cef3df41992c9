"""`@federated.computation` and `@federated.local`: Python functions become typed computations."""

import functools
import inspect
import numbers
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import torch
from jax.sharding import Mesh

from calque.device.memory.cell import active
from calque.errors import CalqueError, with_user_frames
from calque.federated.building_blocks import (
    BuildingBlock,
    Call,
    CompiledComputation,
    Lambda,
    Reference,
    formatted,
)
from calque.federated.closures import Closure
from calque.federated.compiler import Options, Program
from calque.federated.errors import type_error
from calque.federated.local import Framework, compiled
from calque.federated.packing import Packing, annotated_packing, packing_of
from calque.federated.tracing import bind, current, fresh, outside, scope, to_block, type_of
from calque.federated.tracing.values import Value
from calque.federated.types import (
    FederatedType,
    FunctionType,
    StructType,
    Type,
    to_type,
    walk,
)
from calque.interop.from_jax import from_jax


class Computation:
    """A typed computation: called with arrays, it runs; called with symbolic values, it is traced.

    Attributes:
        type_signature: its type, a `FunctionType`.
        building_block: its AST.
    """

    def __init__(
        self, name: str, block: BuildingBlock, packing: Packing, options: Options | None = None
    ) -> None:
        assert isinstance(block.type, FunctionType)
        self.__name__ = name
        self.building_block = block
        self.type_signature: FunctionType = block.type
        self._packing = packing
        self._options = options or Options()

    @with_user_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result for these arguments, bound as Python binds them.

        Raises:
            FederatedTypeError: an argument is of another type; shows both.
            ClientError: what a client holds or computes cannot be used; names the client.
        """
        if current() is None and active.trace is not None and _has_tensors((args, kwargs)):
            return from_jax(lambda *a, **k: self._program(self._packing.pack(a, k)))(
                *args, **kwargs
            )
        packed = self._packing.pack(args, kwargs)
        if current() is None:
            return self._program(packed)
        if self.type_signature.parameter is None:
            return bind(Call(self.building_block))
        return bind(Call(self.building_block, to_block(packed, self.type_signature.parameter)))

    @with_user_frames
    def for_clients(self, numbers: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Like a call with arrays, but errors name clients by these numbers, not positions."""
        return self._program(self._packing.pack(args, kwargs), numbers)

    @with_user_frames
    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The program for these arguments; `.as_text()` is StableHLO, `.compile()` compiles it.

        Without arguments, it is the program for the types of the parameters and the number of
        clients in `configured(clients=...)`; all sizes have to be known.
        """
        if not args and not kwargs:
            return self._program.lower_types()
        return self._program.lower(self._packing.pack(args, kwargs))

    @with_user_frames
    def configured(
        self,
        *,
        chunk: int | None = None,
        mesh: Mesh | None = None,
        axis: str | None = None,
        clients: int | None = None,
        check: bool | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> "Computation":
        """The same computation with different settings for compilation.

        Args:
            chunk: how many clients are computed at once on a device. More need more memory.
            mesh: the devices that share the clients.
            axis: the axis of the mesh that the clients are spread over; the first by default.
            clients: the number of clients, if no argument determines it.
            check: whether a client that computes NaN is an error. The check waits for the
                result of every call.
            data: the data that `federated.data` refers to, by URI.

        Raises:
            ValueError: the chunk or the number of clients is invalid, or the mesh has no such axis.
            TypeError: `mesh` is not a mesh.
        """
        if chunk is not None and not (_is_whole(chunk) and chunk >= 1):
            raise ValueError(f"a chunk has at least one client, a whole number, not {chunk}")
        if clients is not None and not (_is_whole(clients) and clients >= 0):
            raise ValueError(f"there is a whole number of clients, not {clients}")
        if mesh is not None and not isinstance(mesh, Mesh):
            raise TypeError(
                "a mesh is a jax.sharding.Mesh (calque.sharding.mesh(clients=-1) makes one of all "
                f"devices), not {type(mesh).__name__}"
            )
        spread = mesh or self._options.mesh
        if axis is not None and (spread is None or axis not in spread.axis_names):
            raise ValueError(f"there is no mesh with an axis {axis!r}")
        given = {"chunk": chunk, "mesh": mesh, "axis": axis, "clients": clients, "check": check}
        changes = {name: value for name, value in given.items() if value is not None}
        if data is not None:
            changes["data"] = data
        options = replace(self._options, **changes)
        return Computation(self.__name__, self.building_block, self._packing, options)

    @functools.cached_property
    def _program(self) -> Program:
        block = self.building_block
        if not isinstance(block, Lambda):
            name, parameter = fresh("arg"), self.type_signature.parameter
            if parameter is None:
                block = Lambda(None, None, Call(block))
            else:
                block = Lambda(name, parameter, Call(block, Reference(name, parameter)))
        return Program(block, self._options)

    def __building_block__(self, parameter: Type | None) -> BuildingBlock:
        return self.building_block

    def __deepcopy__(self, memo: Any) -> "Computation":
        return self  # as of a function

    def __reduce__(self) -> str:
        return _reference(self)

    def __str__(self) -> str:
        return formatted(self.building_block)

    def __repr__(self) -> str:
        return f"<Computation {self.__name__} of type {self.type_signature}>"


class PolymorphicComputation:
    """A computation whose types are those of the arguments that it is called with."""

    def __init__(self, name: str, make: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self.__name__ = name
        self._make = make
        self._known: dict[Any, Computation] = {}

    @with_user_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result for these arguments; traced once for each combination of their types."""
        types = tuple(type_of(value) for value in args)
        named = {name: type_of(value) for name, value in kwargs.items()}
        return self.of(*types, **named)(*args, **kwargs)

    def of(self, *types: Any, **named: Any) -> Computation:
        """The computation for arguments of these types."""
        kinds = [*types, *named.values()]
        containers = tuple(
            part.container
            for kind in kinds
            for part in walk(to_type(kind))
            if isinstance(part, StructType)
        )
        key = (types, tuple(named.items()), containers)
        if key not in self._known:
            self._known[key] = self._make(types, named)
        return self._known[key]

    def __building_block__(self, parameter: Type | None) -> BuildingBlock:
        if parameter is None:
            return self.of().building_block
        return self.of(parameter).building_block

    def __deepcopy__(self, memo: Any) -> "PolymorphicComputation":
        return self

    def __reduce__(self) -> str:
        return _reference(self)

    def __repr__(self) -> str:
        return f"<PolymorphicComputation {self.__name__}>"


@with_user_frames
def computation(*types: Any, **named: Any) -> Any:
    """Make a typed federated computation from a Python function.

    Use it as a decorator with the types of the parameters. No types are needed if the function has
    annotations or no parameters. Any other function without types is polymorphic: it is traced
    for the types of the arguments of each call.

    The function is called once, with a symbolic value for each argument, and what it does to
    them is recorded; Python's own control flow runs then. Called with arrays, the computation
    is compiled to one XLA program, and runs.

    Args:
        *types: types of parameters by position, as for `to_type`; one struct may be for all.
        **named: types of parameters by name.

    Returns:
        A `Computation`, or a `PolymorphicComputation`; with types, a decorator that returns one.

    Raises:
        FederatedTypeError: types or placements do not fit; the error shows both, and the line.

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


def _decorated(make: Callable[..., Computation], types: tuple[Any, ...], named: Any) -> Any:
    """The decorator, or the computation of the function that it was called with."""
    if types and _is_function(types[0]):
        function, *rest = types
        return _of_function(make, function, tuple(rest), named)
    decorator = functools.partial(_of_function, make, types=types, named=named)
    return with_user_frames(lambda function: decorator(function))


def _of_function(
    make: Callable[..., Computation], function: Any, types: tuple[Any, ...], named: Any
) -> Any:
    if not callable(function):
        raise type_error(f"{function!r} cannot be called", "Make a computation of a function.")
    if types or named:
        return make(function, packing_of(function, types, named))
    packing = annotated_packing(getattr(function, "forward", function))
    if packing is not None:
        return make(function, packing)

    closure = None if make is _trace else Closure(function)  # local functions keep their values

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
    """A Python function as a lambda."""
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
                "Return what it has computed.",
            )
        block = Lambda(name, packing.type, inner.closed(to_block(result)))
    made = Computation(_name(function), block, packing)
    functools.update_wrapper(made, function)
    return made


@contextmanager
def _values_explained() -> Iterator[None]:
    """Says more where a function that knows no values, as of JAX's, refuses one."""
    try:
        yield
    except TypeError as error:
        if Value.__name__ in str(error) and not isinstance(error, CalqueError):
            error.add_note(
                "A Value of a federated computation stands for arrays that are not there yet.\n"
                "Use operators of Python, federated.* or a local function: federated.local."
            )
        raise


def _compile(framework: Framework, function: Any, packing: Packing) -> Computation:
    """A function of tensors as a computation that transformations do not look into."""
    for kind in walk(packing.type) if packing.type is not None else ():
        if isinstance(kind, FederatedType | FunctionType):
            raise type_error(
                f"a local function cannot take {kind}",
                "It runs in one place: declare what lives there, and use federated_map.",
            )
    with outside():
        block: CompiledComputation = compiled(function, packing, framework)
    made = Computation(block.name, block, packing)
    if inspect.isfunction(function):
        functools.update_wrapper(made, function)
    return made


def _has_tensors(arguments: Any) -> bool:
    """Returns True if a function of PyTorch, which is traced now, calls with tensors of its own."""
    leaves = jax.tree.leaves(arguments)
    return any(isinstance(leaf, torch.Tensor) and leaf.device.type == "jax" for leaf in leaves)


def _is_whole(number: Any) -> bool:
    return isinstance(number, numbers.Integral) and not isinstance(number, bool)


def _reference(made: Computation | PolymorphicComputation) -> str:
    """The name by which a computation is pickled, as Python's functions are.

    Raises:
        TypeError: it is not found by a name in its module.
    """
    name = getattr(made, "__qualname__", made.__name__)
    found: Any = sys.modules.get(made.__module__)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not made:
        raise TypeError(
            f"the computation {made.__name__!r} is pickled by its name, and is not "
            f"{made.__module__}.{name}.\nDefine it at the top of a module, and configure it where "
            "it is used."
        )
    return name


def _known(kind: Type | None) -> Type:
    assert kind is not None
    return kind


def _is_function(value: Any) -> bool:
    """Returns True for what can be called and describes no type, as classes and `list[int]` do."""
    is_type = isinstance(value, type | str | Type) or typing.get_origin(value) is not None
    return callable(value) and not is_type


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
