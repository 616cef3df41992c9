"""The kinds of types, which print in the compact notation and are checked at construction.

float32[2,?]          TensorType      a dtype and a shape; ? is an unknown size
<a=int32,float32>     StructType      fields with and without names
int32*                SequenceType    any number of elements
(int32 -> bool)       FunctionType    one parameter or none: ( -> bool)
{float32}@CLIENTS     FederatedType   a value on every client
float32@CLIENTS       FederatedType   the same value on every client (all-equal)
float32@SERVER        FederatedType   a value on the server
placement             PlacementType
T                     AbstractType    a variable, in the types of intrinsics
"""

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from calque.federated.errors import FederatedFieldError, type_error

_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_EXTENDED = (
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    "float8_e8m0fnu",
)
DTYPES: dict[str, np.dtype] = {
    **{name: np.dtype(name) for name in _NAMES},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in _EXTENDED},
}
"""The dtypes of tensors, by their names in the notation."""


def native(dtype: np.dtype) -> np.dtype:
    """Returns a dtype in native byte order, which JAX needs."""
    return dtype if dtype.isnative else np.dtype(dtype.newbyteorder("=").name)


_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_LABEL = re.compile(r"[A-Z][A-Za-z0-9_]*\Z")


class PlacementLiteral(enum.Enum):
    """The placement of a federated value."""

    CLIENTS = "CLIENTS"
    SERVER = "SERVER"

    def __str__(self) -> str:
        return self.value


CLIENTS = PlacementLiteral.CLIENTS
SERVER = PlacementLiteral.SERVER


class Type:
    """The base of all types, which are immutable, and equal if their notation is equal."""

    __slots__ = ()

    def parts(self) -> tuple["Type", ...]:
        """Returns the component types."""
        return ()


@dataclass(frozen=True)
class TensorType(Type):
    """A tensor of a dtype and a shape.

    Args:
        dtype: a numpy dtype.
        shape: the sizes, with None for a size that is unknown until the computation runs.

    >>> import numpy as np
    >>> print(TensorType(np.dtype("float32"), (2, None)))
    float32[2,?]
    """

    dtype: np.dtype
    shape: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        # The byte order is not part of the type.
        object.__setattr__(self, "dtype", native(np.dtype(self.dtype)))
        object.__setattr__(self, "shape", tuple(self.shape))
        if DTYPES.get(self.dtype.name) != self.dtype:
            raise type_error(
                f"a tensor cannot be of dtype {self.dtype}", f"Use one of {', '.join(DTYPES)}."
            )
        for size in self.shape:
            whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
            if size is not None and not (whole and size >= 0):
                raise type_error(
                    f"{size!r} is not a valid size of a tensor",
                    "Sizes must be non-negative integers or None.",
                )

    def __str__(self) -> str:
        sizes = ",".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype.name}[{sizes}]" if self.shape else self.dtype.name

    @property
    def is_fully_defined(self) -> bool:
        """Returns True if every size is known."""
        return None not in self.shape


@dataclass(frozen=True)
class StructType(Type):
    """An ordered list of fields, some or all of which have names.

    Args:
        elements: pairs of a name, or None, and a type.
        container: the Python class of its values; ignored by `==`.

    >>> import numpy as np
    >>> int32 = TensorType(np.dtype("int32"))
    >>> struct = StructType((("a", int32), (None, int32)))
    >>> print(struct, "|", struct["a"], "|", struct[1])
    <a=int32,int32> | int32 | int32
    """

    elements: tuple[tuple[str | None, Type], ...]
    container: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "elements", tuple((n, t) for n, t in self.elements))
        seen: set[str] = set()
        for name, element in self.elements:
            _require_type(element)
            if name is None:
                continue
            if not isinstance(name, str) or not name:
                raise type_error(
                    f"{name!r} is not a valid name of a field", "Names must be non-empty strings."
                )
            if name in seen:
                raise type_error(f"two fields have the name {name!r}", "Rename one of them.")
            seen.add(name)

    def __str__(self) -> str:
        fields = (f"{_spelled(n)}={t}" if n is not None else str(t) for n, t in self.elements)
        return f"<{','.join(fields)}>"

    def parts(self) -> tuple[Type, ...]:
        return tuple(element for _, element in self.elements)

    @property
    def names(self) -> tuple[str | None, ...]:
        """The names of the fields in order, None for fields without a name."""
        return tuple(name for name, _ in self.elements)

    def __len__(self) -> int:
        return len(self.elements)

    def __iter__(self) -> Iterator[Type]:
        return iter(self.parts())

    def __getitem__(self, key: int | str) -> Type:
        return self.elements[self.index(key)][1]

    def index(self, key: int | str) -> int:
        """Returns the position of a field.

        Raises:
            IndexError: the index is out of range.
            FederatedFieldError: no field has that name.
        """
        if isinstance(key, str):
            if key not in self.names:
                named = ", ".join(repr(name) for name in self.names if name is not None)
                raise type_error(
                    f"the struct {self} has no field {key!r}",
                    f"It has {named}." if named else "Its fields have no names: use an index.",
                    FederatedFieldError,
                )
            return self.names.index(key)
        if not -len(self) <= key < len(self):
            raise IndexError(f"the struct {self} has {len(self)} fields, but no field {key}")
        return key % len(self)


@dataclass(frozen=True)
class SequenceType(Type):
    """Any number of elements of one type, such as a client's data set.

    Args:
        element: a type of tensors and structs.
    """

    element: Type

    def __post_init__(self) -> None:
        _only_data("a sequence", self.element)
        if any(isinstance(part, SequenceType) for part in walk(self.element)):
            raise type_error(
                f"a sequence cannot hold the sequence {self.element}",
                "Flatten it, or make the inner one a tensor with a size of its own.",
            )
        if not any(isinstance(part, TensorType | AbstractType) for part in walk(self.element)):
            raise type_error(
                f"a sequence cannot hold {self.element}, whose elements cannot be counted",
                "Add a tensor to its elements, such as an int32.",
            )

    def __str__(self) -> str:
        return f"{self.element}*"

    def parts(self) -> tuple[Type, ...]:
        return (self.element,)


@dataclass(frozen=True)
class FunctionType(Type):
    """A function of one parameter, or of none.

    Args:
        parameter: the type of the parameter; None for a function without one.
        result: the type of the result.
    """

    parameter: Type | None
    result: Type

    def __post_init__(self) -> None:
        for part in self.parts():
            _require_type(part)

    def __str__(self) -> str:
        return f"({'' if self.parameter is None else self.parameter} -> {self.result})"

    def parts(self) -> tuple[Type, ...]:
        return (self.result,) if self.parameter is None else (self.parameter, self.result)


@dataclass(frozen=True)
class PlacementType(Type):
    """The type of a placement itself."""

    def __str__(self) -> str:
        return "placement"


@dataclass(frozen=True)
class AbstractType(Type):
    """A type variable; equal labels mean the same type.

    Args:
        label: a capital letter, then letters, digits and underscores.
    """

    label: str

    def __post_init__(self) -> None:
        if not _LABEL.match(self.label) or self.label in PlacementLiteral.__members__:
            raise type_error(
                f"{self.label!r} is not a valid label of an abstract type", "Use one such as 'T'."
            )

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True)
class FederatedType(Type):
    """A value on the server, or a value on each client.

    Args:
        member: the type of the value: tensors, structs and sequences.
        placement: CLIENTS or SERVER.
        all_equal: whether every client has the same value; always True on the server.

    >>> import numpy as np
    >>> print(FederatedType(TensorType(np.dtype("float32")), CLIENTS))
    {float32}@CLIENTS
    """

    member: Type
    placement: PlacementLiteral
    all_equal: bool = None  # type: ignore[assignment]  # decided by the placement

    def __post_init__(self) -> None:
        if self.all_equal is None:
            object.__setattr__(self, "all_equal", self.placement is SERVER)
        _only_data("a federated value", self.member)
        if not isinstance(self.placement, PlacementLiteral):
            raise type_error(
                f"{self.placement!r} is not a placement",
                "Use federated.CLIENTS or federated.SERVER.",
            )
        if self.placement is SERVER and not self.all_equal:
            raise type_error(
                f"{{{self.member}}}@SERVER says that the values differ, but there is only one "
                "server",
                f"Write {self.member}@SERVER.",
            )

    def __str__(self) -> str:
        member = str(self.member) if self.all_equal else f"{{{self.member}}}"
        return f"{member}@{self.placement}"

    def parts(self) -> tuple[Type, ...]:
        return (self.member,)


def walk(kind: Type) -> Iterator[Type]:
    """Yields a type and all of its parts."""
    yield kind
    for part in kind.parts():
        yield from walk(part)


def _only_data(whole: str, member: Type) -> None:
    _require_type(member)
    for part in walk(member):
        if isinstance(part, FunctionType | FederatedType | PlacementType):
            raise type_error(
                f"{whole} cannot hold {part}", "It can hold tensors, structs and sequences."
            )


def _require_type(part: object) -> None:
    if not isinstance(part, Type):
        raise type_error(f"{part!r} is not a type", "Use federated.to_type to make one.")


def _spelled(name: str) -> str:
    """Returns a field's name in the notation, quoted unless it is an identifier."""
    if _BARE.match(name):
        return name
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"
