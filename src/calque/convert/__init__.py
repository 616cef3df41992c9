"""Converts programs to a format of your own.

`Converters` is a registry; a converter gets a plain record of each call. Built in are a table of
layers (`layer_table`) and a format of JSON and safetensors (`save`, `load`).

>>> import calque, torch
>>> recording = calque.record(lambda x: torch.relu(x).view(-1), torch.ones(1, 2))
>>> calls = list(calque.convert.Calls(recording.graph()))
>>> calls[1].op, calls[1].arguments
('Tensor.view', {'self': TensorInfo(name='relu', shape=(1, 2), dtype='float32'), 'size': [-1]})
"""

from calque.convert.calls import Call, Calls
from calque.convert.errors import ConversionError
from calque.convert.loading import Loaded, load
from calque.convert.onnx_graph import to_onnx
from calque.convert.registry import Converted, Converters, Coverage, Placeholder
from calque.convert.saving import save
from calque.convert.table import Layer, LayerTable, layer_table
from calque.convert.tensor_infos import TensorInfo, WeightInfo

__all__ = [
    "Call",
    "Calls",
    "ConversionError",
    "Converted",
    "Converters",
    "Coverage",
    "Layer",
    "LayerTable",
    "Loaded",
    "Placeholder",
    "TensorInfo",
    "WeightInfo",
    "layer_table",
    "load",
    "save",
    "to_onnx",
]
