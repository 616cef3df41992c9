"""Typed computations: their building blocks, calls and pickling."""

import functools
import numbers
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import torch
from jax.sharding import Mesh

from calque.device.memory.cell import active
from calque.errors import with_user_frames
from calque.federated.building_blocks import (
    BuildingBlock,
    Call,
    Lambda,
    Reference,
    formatted,
)
from calque.federated.compiler import CompileOptions, ComputationProgram
from calque.federated.packing import Packing
from calque.federated.tracing import bind, current, fresh, to_block, type_of
from calque.federated.types import (
    FunctionType,
    StructType,
    Type,
    to_type,
    walk,
)
from calque.interop.from_jax import from_jax


class Computation:
    """A typed computation, which runs when called with arrays, and is traced when called with
    symbolic values.

    Attributes:
        type_signature: its type, a `FunctionType`.
        building_block: its AST.
    """

    def __init__(
        self,
        name: str,
        block: BuildingBlock,
        packing: Packing,
        options: CompileOptions | None = None,
    ) -> None:
        assert isinstance(block.type, FunctionType)
        self.__name__ = name
        self.building_block = block
        self.type_signature: FunctionType = block.type
        self._packing = packing
        self._options = options or CompileOptions()

    @with_user_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result for these arguments, bound by Python's rules.

        Raises:
            FederatedTypeError: an argument has a different type; shows both.
            ClientError: a client's data or result cannot be used; names the client.
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
    def for_clients(self, numbers: object, /, *args: Any, **kwargs: Any) -> Any:
        """Like a call with arrays, but errors name clients by these numbers, not positions."""
        return self._program(self._packing.pack(args, kwargs), numbers)

    @with_user_frames
    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the program for these arguments; `.as_text()` is StableHLO, `.compile()` compiles
        it.

        Without arguments, returns the program for the types of the parameters and the number of
        clients in `configured(clients=...)`; all sizes must be known.
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
        """Returns the same computation with different settings for compilation.

        Args:
            chunk: the number of clients that a device computes at once. More clients need more
                memory.
            mesh: the devices that share the clients.
            axis: the axis of the mesh over which the clients are distributed; the first by default.
            clients: the number of clients, if no argument determines it.
            check: whether a client that computes NaN is an error. The check waits for the
                result of every call.
            data: the data that `federated.data` refers to, by URI.

        Raises:
            ValueError: the chunk or the number of clients is invalid, or the mesh has no such axis.
            TypeError: `mesh` is not a mesh.
        """
        if chunk is not None and not (_is_whole(chunk) and chunk >= 1):
            raise ValueError(f"chunk must be an integer of at least 1, not {chunk}")
        if clients is not None and not (_is_whole(clients) and clients >= 0):
            raise ValueError(f"clients must be a non-negative integer, not {clients}")
        if mesh is not None and not isinstance(mesh, Mesh):
            raise TypeError(
                "mesh must be a jax.sharding.Mesh (calque.sharding.mesh(clients=-1) makes one "
                f"of all devices), not {type(mesh).__name__}"
            )
        spread = mesh or self._options.mesh
        if axis is not None and (spread is None or axis not in spread.axis_names):
            raise ValueError(f"the computation has no mesh with an axis {axis!r}")
        given = {"chunk": chunk, "mesh": mesh, "axis": axis, "clients": clients, "check": check}
        changes = {name: value for name, value in given.items() if value is not None}
        if data is not None:
            changes["data"] = data
        options = replace(self._options, **changes)
        return Computation(self.__name__, self.building_block, self._packing, options)

    @functools.cached_property
    def _program(self) -> ComputationProgram:
        block = self.building_block
        if not isinstance(block, Lambda):
            name, parameter = fresh("arg"), self.type_signature.parameter
            if parameter is None:
                block = Lambda(None, None, Call(block))
            else:
                block = Lambda(name, parameter, Call(block, Reference(name, parameter)))
        return ComputationProgram(block, self._options)

    def __building_block__(self, parameter: Type | None) -> BuildingBlock:
        return self.building_block

    def __deepcopy__(self, memo: object) -> "Computation":
        return self  # like a function

    @with_user_frames
    def __reduce__(self) -> str:
        return _reference(self)

    def __str__(self) -> str:
        return formatted(self.building_block)

    def __repr__(self) -> str:
        return f"<Computation {self.__name__} of type {self.type_signature}>"


class PolymorphicComputation:
    """A computation that takes its types from the arguments of each call."""

    def __init__(self, name: str, make: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self.__name__ = name
        self._make = make
        self._known: dict[Any, Computation] = {}

    @with_user_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result for these arguments; traces the function for each new combination of
        types.
        """
        types = tuple(type_of(value) for value in args)
        named = {name: type_of(value) for name, value in kwargs.items()}
        return self.of(*types, **named)(*args, **kwargs)

    def of(self, *types: Any, **named: Any) -> Computation:
        """Returns the computation for arguments of these types."""
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

    def __deepcopy__(self, memo: object) -> "PolymorphicComputation":
        return self

    @with_user_frames
    def __reduce__(self) -> str:
        return _reference(self)

    def __repr__(self) -> str:
        return f"<PolymorphicComputation {self.__name__}>"


def _has_tensors(arguments: object) -> bool:
    """Returns True if a traced PyTorch function passes its own tensors."""
    leaves = jax.tree.leaves(arguments)
    return any(isinstance(leaf, torch.Tensor) and leaf.device.type == "jax" for leaf in leaves)


def _is_whole(number: Any) -> bool:
    return isinstance(number, numbers.Integral) and not isinstance(number, bool)


def _reference(made: Computation | PolymorphicComputation) -> str:
    """Returns the name by which a computation is pickled, like Python functions.

    Raises:
        TypeError: its module has no such name for it.
    """
    name = getattr(made, "__qualname__", made.__name__)
    found: Any = sys.modules.get(made.__module__)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not made:
        raise TypeError(
            f"the computation {made.__name__!r} is pickled by name, but {made.__module__}.{name} "
            "is a different object.\nDefine it at the top level of a module, and configure it "
            "where it is used."
        )
    return name
