"""The building blocks of the AST, which are immutable and typed at construction.

    Reference            a name bound by a Lambda or a Block
    Selection            a field of a struct
    Struct               a struct of other blocks
    Call                 a call of a function, with or without an argument
    Lambda               a function
    Block                local names, which later ones may use, and a result
    Intrinsic            an operator of the language, by its URI; see `intrinsics`
    Data                 data that is passed when the computation runs, by its URI
    Literal              a constant array
    Placement            CLIENTS or SERVER, as a value
    CompiledComputation  a function of tensors, written in PyTorch or JAX

Two blocks are equal (`==`) if they are written the same; `same` ignores the names of bound
variables.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calque.errors import Origin
from calque.federated.building_blocks.intrinsics import check_intrinsic
from calque.federated.errors import type_error
from calque.federated.types import (
    FunctionType,
    PlacementLiteral,
    PlacementType,
    StructType,
    TensorType,
    Type,
    is_assignable,
)


class BuildingBlock:
    """The base of all blocks."""

    type: Type

    def children(self) -> tuple["BuildingBlock", ...]:
        """Returns the parts of this block, in order of evaluation."""
        return ()

    def with_children(self, children: tuple["BuildingBlock", ...]) -> "BuildingBlock":
        """Returns the same block with different children."""
        return self


@dataclass(frozen=True)
class Reference(BuildingBlock):
    """A use of a name."""

    name: str
    type: Type


@dataclass(frozen=True)
class Selection(BuildingBlock):
    """A field of a struct.

    Args:
        source: a block of a struct type.
        key: the name of the field, or its index.

    Raises:
        FederatedTypeError: the source is not a struct, or has no such field.
    """

    source: BuildingBlock
    key: str | int
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        struct = self.source.type
        if not isinstance(struct, StructType):
            raise type_error(
                f"the field {self.key!r} is selected from {struct}, which is not a struct",
                "Select fields from structs only.",
            )
        index = struct.index(self.key)
        name = struct.names[index]
        object.__setattr__(self, "key", index if name is None else name)
        object.__setattr__(self, "type", struct[index])

    @property
    def index(self) -> int:
        """The position of the field."""
        struct = self.source.type
        assert isinstance(struct, StructType)
        return struct.index(self.key)

    def children(self) -> tuple[BuildingBlock, ...]:
        return (self.source,)

    def with_children(self, children: tuple[BuildingBlock, ...]) -> BuildingBlock:
        return Selection(children[0], self.index)


@dataclass(frozen=True)
class Struct(BuildingBlock):
    """A struct of blocks.

    Args:
        elements: pairs of a name, or None, and a block.
        container: the Python class of the value; ignored by `==`.
    """

    elements: tuple[tuple[str | None, BuildingBlock], ...]
    container: Any = field(default=None, compare=False, repr=False)
    type: StructType = field(init=False, compare=False)

    def __post_init__(self) -> None:
        fields = tuple((name, block.type) for name, block in self.elements)
        object.__setattr__(self, "elements", tuple(self.elements))
        object.__setattr__(self, "type", StructType(fields, self.container))

    def children(self) -> tuple[BuildingBlock, ...]:
        return tuple(block for _, block in self.elements)

    def with_children(self, children: tuple[BuildingBlock, ...]) -> BuildingBlock:
        return Struct(tuple(zip(self.type.names, children, strict=True)), self.container)


@dataclass(frozen=True)
class Call(BuildingBlock):
    """A call of a function.

    Args:
        function: a block of a function type.
        argument: the argument; None if the function has no parameter.
        origin: the user's line of the call; ignored by `==`.

    Raises:
        FederatedTypeError: `function` is not a function, or does not take the argument.
    """

    function: BuildingBlock
    argument: BuildingBlock | None = None
    origin: Origin | None = field(default=None, compare=False, repr=False)
    type: Type = field(init=False, compare=False)

    def __post_init__(self) -> None:
        kind = self.function.type
        if not isinstance(kind, FunctionType):
            raise type_error(
                f"a value of type {kind} is not a function, but is called", "Call functions only."
            )
        given = None if self.argument is None else self.argument.type
        if kind.parameter is None or given is None:
            fits = kind.parameter is given
        else:
            fits = is_assignable(kind.parameter, given)
        if not fits:
            raise type_error(
                f"a function that takes {kind.parameter or 'no argument'} is called with "
                f"{given or 'no argument'}",
                "Pass an argument of its parameter's type, or declare it with the type of the "
                "argument.",
            )
        object.__setattr__(self, "type", kind.result)

    def children(self) -> tuple[BuildingBlock, ...]:
        return (self.function,) if self.argument is None else (self.function, self.argument)

    def with_children(self, children: tuple[BuildingBlock, ...]) -> BuildingBlock:
        return Call(children[0], *children[1:], origin=self.origin)


@dataclass(frozen=True)
class Lambda(BuildingBlock):
    """A function.

    Args:
        parameter: the name of its parameter; None for a function without one.
        parameter_type: the type of the parameter, or None.
        result: a block, which may refer to the parameter.
    """

    parameter: str | None
    parameter_type: Type | None
    result: BuildingBlock
    type: FunctionType = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if (self.parameter is None) != (self.parameter_type is None):
            raise type_error(
                "a parameter needs both a name and a type", "Give both, or neither of them."
            )
        kind = FunctionType(self.parameter_type, self.result.type)
        object.__setattr__(self, "type", kind)

    def children(self) -> tuple[BuildingBlock, ...]:
        return (self.result,)

    def with_children(self, children: tuple[BuildingBlock, ...]) -> BuildingBlock:
        return Lambda(self.parameter, self.parameter_type, children[0])


@dataclass(frozen=True)
class Block(BuildingBlock):
    """Local names and a result.

    Args:
        locals: pairs of a name and a block; each may refer to the names before it.
        result: a block, which may refer to all of them.
    """

    locals: tuple[tuple[str, BuildingBlock], ...]
    result: BuildingBlock
    type: Type = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "locals", tuple(self.locals))
        object.__setattr__(self, "type", self.result.type)

    def children(self) -> tuple[BuildingBlock, ...]:
        return (*(value for _, value in self.locals), self.result)

    def with_children(self, children: tuple[BuildingBlock, ...]) -> BuildingBlock:
        names = (name for name, _ in self.locals)
        return Block(tuple(zip(names, children[:-1], strict=True)), children[-1])


@dataclass(frozen=True)
class Intrinsic(BuildingBlock):
    """An operator of the language.

    Args:
        uri: its name, a key of `intrinsics.INTRINSICS`.
        type: its type at this use, a function.

    Raises:
        FederatedTypeError: the intrinsic does not exist, or cannot have this type.
    """

    uri: str
    type: FunctionType

    def __post_init__(self) -> None:
        check_intrinsic(self.uri, self.type)


@dataclass(frozen=True)
class Data(BuildingBlock):
    """Data that is supplied when the computation runs.

    Args:
        uri: the key under which it is supplied.
        type: its type.
    """

    uri: str
    type: Type


@dataclass(frozen=True, eq=False)
class Literal(BuildingBlock):
    """A constant array.

    Args:
        value: the array.
    """

    value: np.ndarray
    type: TensorType = field(init=False)

    def __post_init__(self) -> None:
        value = np.array(self.value)
        value.flags.writeable = False
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "type", TensorType(value.dtype, value.shape))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Literal):
            return NotImplemented
        return self.type == other.type and self.value.tobytes() == other.value.tobytes()

    def __hash__(self) -> int:
        return hash((self.type, self.value.tobytes()))


@dataclass(frozen=True)
class Placement(BuildingBlock):
    """A placement as a value."""

    literal: PlacementLiteral
    type: PlacementType = field(init=False, default=PlacementType())


@dataclass(frozen=True)
class CompiledComputation(BuildingBlock):
    """A function of tensors, structs and sequences, opaque to transformations.

    Args:
        name: the name to display; ignored by `==`.
        function: a function from a pytree to a pytree, which JAX can trace.
        type: a function type.
    """

    name: str = field(compare=False)
    function: Any
    type: FunctionType
