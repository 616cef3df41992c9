"""A call of an operator, as the converters to ONNX see it."""

import importlib
from typing import Any

import numpy as np

from calque.convert.calls import Call, TensorInfo, WeightInfo
from calque.convert.errors import ConversionError


class OnnxCall:
    """A call that is converted: its arguments by name, as names of ONNX values or as numbers."""

    def __init__(self, call: Call, graph: Any) -> None:
        self.call, self.graph = call, graph
        self.out = call.outputs[0]
        self.shape: tuple[int, ...] = self.out.shape or ()
        self._given = call.arguments

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    def get(self, name: str) -> Any:
        """An argument that this overload may not have."""
        return self._given.get(name)

    def name(self, argument: str, dtype: str | None = None) -> str:
        """The ONNX value of an argument; of another dtype, where that is given."""
        return self.named(self._given[argument], dtype)

    def named(self, value: Any, dtype: str | None = None) -> str:
        """The ONNX value of a tensor or a number."""
        if isinstance(value, WeightInfo):
            found = self.graph.weight(value.name, self.call.weights[value.name])
        elif isinstance(value, TensorInfo):
            found = value.name
        else:
            return self.graph.constant(value, np.dtype(dtype or str(self.out.dtype)))
        return found if dtype in (None, value.dtype) else self.cast(found, dtype)

    def cast(self, name: str, dtype: str | None) -> str:
        """A value in another dtype."""
        return self.graph.value("Cast", [name], to=kind_of(dtype))

    def add(self, kind: str, inputs: list[str], **attributes: Any) -> None:
        """The node that gives the result of the call."""
        names = [out.name for out in self.call.outputs]
        self.graph.add(kind, inputs, names if kind == "Split" else names[:1], **attributes)

    def rank(self, argument: str = "self") -> int:
        """How many dimensions a tensor has."""
        return len(self._given[argument].shape)

    def refuse(self, why: str) -> None:
        raise ConversionError(why)


def library() -> Any:
    """The package onnx, which is optional.

    Raises:
        ImportError: it is not installed.
    """
    return importlib.import_module("onnx")


def kind_of(dtype: str | None) -> int:
    """The number by which ONNX knows a dtype."""
    return library().helper.np_dtype_to_tensor_dtype(np.dtype(str(dtype)))
