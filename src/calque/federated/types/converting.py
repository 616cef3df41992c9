"""Converts types from and to dtypes, arrays, pytrees, dataclasses and modules."""

import dataclasses
import sys
import typing
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import torch

from calque.device.runtime.dtypes import to_numpy
from calque.errors import FederatedTypeError, with_user_frames
from calque.federated.errors import type_error
from calque.federated.types.kinds import (
    CLIENTS,
    DTYPES,
    SERVER,
    AbstractType,
    FederatedType,
    StructType,
    TensorType,
    Type,
)
from calque.federated.types.parsing import parse_type

_PYTHON = {bool: "bool", int: "int32", float: "float32", complex: "complex64"}


@with_user_frames
def to_type(spec: Any) -> Type:
    """Returns the type for anything that describes one.

    Args:
        spec: a type; the compact notation; a dtype of NumPy, JAX or PyTorch; `bool`, `int` (int32),
            `float` (float32) or `complex` (complex64); a pair of a dtype and a list of sizes; an
            array, a tensor or a `jax.ShapeDtypeStruct`; a module (its `state_dict`); a dataclass or
            a named tuple with annotations, or an instance of one, whose fields may also be numbers;
            or a dict, list or tuple of these, or `tuple[int, float]`.

    Raises:
        FederatedTypeError: it does not describe a type.

    >>> import numpy as np, torch
    >>> print(to_type({"a": np.int32, "b": (torch.float32, [2, None])}))
    <a=int32,b=float32[2,?]>
    >>> print(to_type(torch.nn.Linear(3, 2)))
    <weight=float32[2,3],bias=float32[2]>
    """
    if isinstance(spec, Type):
        return spec
    if isinstance(spec, str):
        return parse_type(spec)
    if _is_dtype(spec):
        return TensorType(_dtype(spec))
    if isinstance(spec, torch.nn.Module):
        return _struct(spec.state_dict().items(), dict)
    if hasattr(spec, "shape") and hasattr(spec, "dtype"):
        return TensorType(_dtype(spec.dtype), tuple(spec.shape))
    if _is_sized_dtype(spec):
        return TensorType(_dtype(spec[0]), tuple(spec[1]))
    if dataclasses.is_dataclass(spec):
        return _of_dataclass(spec)
    if isinstance(spec, Mapping):
        return _struct(spec.items(), dict)
    if isinstance(spec, type) and issubclass(spec, tuple) and hasattr(spec, "_fields"):
        return _of_annotations(spec, typing.cast(Any, spec)._fields)
    if isinstance(spec, tuple) and hasattr(spec, "_fields"):
        return _of_instance(zip(spec._fields, spec), type(spec))
    if typing.get_origin(spec) is tuple and Ellipsis not in typing.get_args(spec):
        return _struct(((None, part) for part in typing.get_args(spec)), tuple)
    if isinstance(spec, list | tuple):
        return _struct(((None, part) for part in spec), type(spec))
    raise type_error(
        f"{spec!r} does not describe a type",
        "Use the notation ('float32[2]'), a dtype, or a dict, list or tuple of them.",
    )


@with_user_frames
def at_clients(member: object, all_equal: bool = False) -> FederatedType:
    """Returns the type of a value on every client; takes what `to_type` takes.

    >>> print(at_clients((np.float32, [3])))
    {float32[3]}@CLIENTS
    """
    return FederatedType(to_type(member), CLIENTS, all_equal)


@with_user_frames
def at_server(member: object) -> FederatedType:
    """Returns the type of a value on the server; takes what `to_type` takes."""
    return FederatedType(to_type(member), SERVER)


def is_numeric_leaf(value: object) -> bool:
    """Returns True if a value is an array, a tensor or a Python number."""
    return isinstance(value, bool | int | float | complex) or (
        hasattr(value, "shape") and hasattr(value, "dtype")
    )


def python_number(value: object) -> bool | int | float | complex | None:
    """Returns the value of a Python number or `IntEnum` member; None for anything else.

    >>> python_number(True), python_number(2.0), python_number(np.float64(2.0))
    (True, 2.0, None)
    """
    if isinstance(value, np.generic):  # np.float64 is a float, but has a dtype
        return None
    return next((kind(value) for kind in _PYTHON if isinstance(value, kind)), None)


def type_of_value(value: object) -> Type:
    """Returns the type of an array, a Python number, or a container of them.

    Raises:
        FederatedTypeError: the value is not supported, or is an integer too large for int32.
    """
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**31) <= value < 2**31:
        raise type_error(f"{value} does not fit int32", "Pass a 64-bit NumPy integer.")
    if (number := python_number(value)) is not None:
        return TensorType(DTYPES[_PYTHON[type(number)]])
    if isinstance(value, Mapping):
        return StructType(tuple((n, type_of_value(v)) for n, v in value.items()), dict)
    if (fields := fields_of(value)) is not None:
        return StructType(tuple((n, type_of_value(v)) for n, v in fields.items()), type(value))
    if isinstance(value, list | tuple):
        names = getattr(value, "_fields", [None] * len(value))
        pairs = tuple((n, type_of_value(v)) for n, v in zip(names, value))
        return StructType(pairs, type(value))
    if not is_numeric_leaf(value):
        raise type_error(
            f"{value!r} cannot be a value of a federated computation",
            "Use arrays, tensors, numbers, and dicts, lists, tuples or dataclasses of them.",
        )
    return to_type(value)


def to_shapes(kind: Type) -> Any:
    """Returns a type of tensors and structs as a pytree of `jax.ShapeDtypeStruct`.

    A struct becomes its container or, without one, a dict if all fields have names, otherwise a
    tuple.

    Raises:
        FederatedTypeError: a size is unknown, or the type contains other types.

    >>> to_shapes(to_type({"a": (float, [2])}))
    {'a': ShapeDtypeStruct(shape=(2,), dtype=float32)}
    """
    if isinstance(kind, TensorType) and kind.is_fully_defined:
        return jax.ShapeDtypeStruct(typing.cast(tuple[int, ...], kind.shape), kind.dtype)
    if isinstance(kind, StructType):
        return rebuild(kind, [to_shapes(part) for part in kind])
    raise type_error(
        f"{kind} cannot be described by shapes of arrays",
        "Use tensors of known sizes, and structs.",
    )


def rebuild(kind: StructType, values: list[Any]) -> Any:
    """Returns a Python container of the values of a struct's fields."""
    names, container = kind.names, kind.container
    if container is not None and dataclasses.is_dataclass(container):
        fields = typing.cast(dict[str, Any], dict(zip(names, values, strict=True)))
        return instance_of(container, fields)
    if container is not None and hasattr(container, "_fields"):
        return container(*values)
    if container is list:
        return list(values)
    if names and None not in names:
        return dict(zip(names, values, strict=True))
    if any(name is not None for name in names):
        return Struct(zip(names, values, strict=True))
    return {} if container is dict else tuple(values)


def fields_of(value: object) -> dict[str, Any] | None:
    """Returns the fields of a dataclass instance by name; None for anything else."""
    if isinstance(value, type | jax.Array | torch.Tensor) or not dataclasses.is_dataclass(value):
        return None
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def instance_of(container: Any, values: dict[str, Any]) -> Any:
    """Returns a dataclass instance with these field values."""
    given = {f.name: values[f.name] for f in dataclasses.fields(container) if f.init}
    made = container(**given)
    for name in values.keys() - given.keys():  # fields that `__init__` does not take
        object.__setattr__(made, name, values[name])
    return made


class Struct(tuple):
    """A tuple in which some fields also have names, for structs that mix both.

    >>> point = Struct([("x", 1), (None, 2)])
    >>> point.x, point[1], point["x"]
    (1, 2, 1)
    """

    names: tuple[str | None, ...]

    def __new__(cls, elements: Any) -> "Struct":
        pairs = list(elements)
        made = super().__new__(cls, [value for _, value in pairs])
        made.names = tuple(name for name, _ in pairs)
        return made

    def __getattr__(self, name: str) -> Any:
        if name == "names" or name not in self.names:
            raise AttributeError(f"no field {name!r}")
        return self[self.names.index(name)]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self.names:
                raise KeyError(f"no field {key!r}")
            return super().__getitem__(self.names.index(key))
        return super().__getitem__(key)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(zip(self.names, self)),)

    def __repr__(self) -> str:
        shown = (f"{n}={v!r}" if n else repr(v) for n, v in zip(self.names, self))
        return f"<{', '.join(shown)}>"


jax.tree_util.register_pytree_node(
    Struct, lambda s: (tuple(s), s.names), lambda names, parts: Struct(zip(names, parts))
)


def of_annotation(annotation: object, names: Mapping[str, Any]) -> Type:
    """Returns the type that an annotation describes.

    Args:
        annotation: an argument for `to_type`, or its source text.
        names: the globals for names in the text.

    Raises:
        FederatedTypeError: it does not describe a type.
    """
    annotation = getattr(annotation, "__forward_arg__", annotation)  # the text in a named tuple
    if not isinstance(annotation, str):
        return to_type(annotation)
    try:
        found = parse_type(annotation)
        if not isinstance(found, AbstractType) or annotation.strip() not in names:
            return found
        found = names[annotation.strip()]  # text of `from __future__ import annotations`
    except FederatedTypeError as unreadable:
        try:
            found = eval(annotation, dict(names))
        except Exception:
            raise unreadable from None
    return to_type(found)


def _struct(pairs: Any, container: Any) -> StructType:
    return StructType(tuple((name, to_type(part)) for name, part in pairs), container)


def _is_dtype(spec: object) -> bool:
    if isinstance(spec, type):
        scalar = isinstance(getattr(spec, "dtype", None), np.dtype)  # such as jax.numpy.float32
        return spec in _PYTHON or issubclass(spec, np.generic) or scalar
    return isinstance(spec, np.dtype | torch.dtype)


def _is_sized_dtype(spec: object) -> bool:
    if not (isinstance(spec, tuple) and len(spec) == 2 and isinstance(spec[1], list | tuple)):
        return False
    if isinstance(spec[0], list | tuple | dict | Type) or not _is_dtype(spec[0]):
        return False
    return all(size is None or type(size) is int for size in spec[1])


def _dtype(spec: Any) -> np.dtype:
    if isinstance(spec, torch.dtype):
        return to_numpy(spec)
    if isinstance(spec, type) and spec in _PYTHON:
        return DTYPES[_PYTHON[spec]]
    if jax.dtypes.issubdtype(spec, jax.dtypes.extended):
        raise type_error(
            f"a tensor cannot be of dtype {spec}", "Pass the bits of a key: jax.random.key_data."
        )
    return np.dtype(spec)


def _of_dataclass(spec: Any) -> StructType:
    if isinstance(spec, type):
        return _of_annotations(spec, [field.name for field in dataclasses.fields(spec)])
    return _of_instance((fields_of(spec) or {}).items(), type(spec))


def _of_instance(pairs: typing.Iterable[tuple[str, Any]], container: type) -> StructType:
    """Returns the struct type of an instance whose fields are values or type descriptions."""
    found = ((n, type_of_value(v) if _has_numbers(v) else to_type(v)) for n, v in pairs)
    return StructType(tuple(found), container)


def _has_numbers(value: object) -> bool:
    """Returns True for a Python number or a container of one, which do not describe types."""
    if isinstance(value, Mapping):
        return any(map(_has_numbers, value.values()))
    if isinstance(value, list | tuple) and not _is_sized_dtype(value):
        return any(map(_has_numbers, value))
    return python_number(value) is not None


def _of_annotations(spec: type, names: typing.Iterable[str]) -> StructType:
    """Returns the type given by the annotations of a class."""
    home = vars(sys.modules[spec.__module__])
    said = {
        n: a
        for one in reversed(spec.__mro__)
        for n, a in vars(one).get("__annotations__", {}).items()
    }
    missing = [name for name in names if name not in said]
    if missing:
        raise type_error(
            f"the field {missing[0]!r} of {spec.__name__} has no annotation",
            "Annotate it, or describe an instance.",
        )
    return _struct(((name, of_annotation(said[name], home)) for name in names), spec)
