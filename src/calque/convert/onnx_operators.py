"""The converters to ONNX, by PyTorch operator."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from calque.convert.calls import Call
from calque.convert.onnx_calls import OnnxCall
from calque.convert.onnx_indexing import INDEXING
from calque.convert.onnx_layers import LAYERS
from calque.convert.onnx_pointwise import POINTWISE
from calque.convert.onnx_reductions import REDUCTIONS
from calque.convert.onnx_scans import SCANS
from calque.convert.registry import Converters

Convert = Callable[[OnnxCall], None]


def table() -> Mapping[str, Convert]:
    """Returns the converters by the name of the overload, such as `"aten.relu.default"`."""
    by_name = {**POINTWISE, **REDUCTIONS, **SCANS, **INDEXING, **LAYERS}
    return {
        f"aten.{name}.{overload}": convert
        for name, convert in by_name.items()
        for overload in getattr(torch.ops.aten, name).overloads()
        if overload != "dtype" or name in (*REDUCTIONS, *SCANS)
    }


def converters_for(graph: Any) -> Converters:
    """Converters that add nodes to an `OnnxGraph`."""
    made = Converters(level="aten")

    def converter(convert: Convert) -> Callable[[Call], None]:
        def run(call: Call) -> None:
            seen = OnnxCall(call, graph)
            convert(seen)
            seen.refuse_unread()
            graph.rounded(call.outputs)

        return run

    for name, convert in table().items():
        made.operator(name)(converter(convert))
    return made
