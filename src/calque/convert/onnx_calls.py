"""A call of an operator, in the form for converters to ONNX."""

import importlib
from typing import Any

import numpy as np

from calque.convert.calls import Call
from calque.convert.errors import ConversionError
from calque.convert.tensor_infos import TensorInfo, WeightInfo

NARROW, WIDE = "bfloat16", "float32"
"""A dtype, and the wider one that replaces it in computations."""

_OF_THE_RESULT = ("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking")
"""Arguments that only affect the dtype of the result, or have no meaning in ONNX."""


class OnnxCall:
    """A call to convert, with its arguments by name, as names of ONNX values or as numbers."""

    def __init__(self, call: Call, graph: Any) -> None:
        self.call: Call = call
        self.graph: Any = graph
        self.out: TensorInfo = _wide(call.outputs[0])
        self.shape: tuple[int, ...] = self.out.shape or ()
        self._given: dict[str, Any] = _wide(call.arguments)
        self._read: set[str] = set(_OF_THE_RESULT)

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._given[name]

    def get(self, name: str) -> Any:
        """Returns an argument that this overload may not have."""
        self._read.add(name)
        return self._given.get(name)

    def name(self, argument: str, dtype: str | None = None) -> str:
        """Returns the ONNX value of an argument, cast to a dtype if one is given."""
        return self.named(self[argument], dtype)

    def shown(self, *names: str) -> None:
        """Mark arguments as handled, because the result's shape reflects them, or they have no
        effect.
        """
        self._read.update(names)

    def refuse_unread(self) -> None:
        """Raise an error if the call has an argument that its converter has not read.

        Raises:
            ConversionError: there is such an argument, with a value other than the default.
        """
        for parameter in self.call.target._schema.arguments:
            name = parameter.name
            if name in self._read or name not in self._given:
                continue
            default = parameter.default_value if parameter.has_default_value() else None
            if _listed(self._given[name]) != _listed(default):
                self.refuse(
                    f"the argument {name}={self._given[name]!r} cannot be expressed in ONNX"
                )

    def named(self, value: Any, dtype: str | None = None) -> str:
        """Returns the ONNX value of a tensor or a number."""
        if isinstance(value, WeightInfo):
            found = self.graph.weight(value.name, self.call.weights[value.name])
        elif isinstance(value, TensorInfo):
            found = self.graph.named(value.name)
        else:
            return self.graph.constant(value, np.dtype(dtype or str(self.out.dtype)))
        return found if dtype in (None, value.dtype) else self.cast(found, dtype)

    def cast(self, name: str, dtype: str | None) -> str:
        """Returns a value in a different dtype."""
        return self.graph.value("Cast", [name], to=kind_of(dtype))

    def add(self, kind: str, inputs: list[str], **attributes: Any) -> None:
        """Add the node that computes the result of the call."""
        names = [out.name for out in self.call.outputs]
        self.graph.add(kind, inputs, names if kind == "Split" else names[:1], **attributes)

    def add_choice(self, condition: str, yes: str, no: str) -> None:
        """Add the result, which is one value where the condition holds, and the other elsewhere."""
        if self.out.dtype != "bool":
            self.add("Where", [condition, yes, no])
            return
        one = self.graph.value("And", [condition, yes])
        other = self.graph.value("And", [self.graph.value("Not", [condition]), no])
        self.add("Or", [one, other])

    def is_floating(self) -> bool:
        """Returns True if the result has a floating-point dtype."""
        return "float" in str(self.out.dtype)

    def size(self) -> int:
        """Returns the number of elements of the result."""
        return int(np.prod(self.shape))

    def rank(self, argument: str = "self") -> int:
        """Returns the number of dimensions of a tensor."""
        return len(self[argument].shape)

    def refuse(self, why: str) -> None:
        raise ConversionError(why)


def _wide(value: Any) -> Any:
    """Returns the value with tensors of a narrow dtype cast to the wide dtype."""
    if isinstance(value, TensorInfo | WeightInfo):
        return value._replace(dtype=WIDE) if value.dtype == NARROW else value
    if isinstance(value, dict):
        return {key: _wide(part) for key, part in value.items()}
    return type(value)(map(_wide, value)) if type(value) in (tuple, list) else value


def _listed(value: object) -> Any:
    return list(value) if isinstance(value, tuple) and not hasattr(value, "dtype") else value


def library() -> Any:
    """Imports and returns the optional package onnx.

    Raises:
        ImportError: it is not installed.
    """
    return importlib.import_module("onnx")


def kind_of(dtype: str | None) -> int:
    """Returns ONNX's number for a dtype."""
    return library().helper.np_dtype_to_tensor_dtype(np.dtype(str(dtype)))
