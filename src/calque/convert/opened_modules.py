"""Calls of modules that have a converter, but cannot be represented by one call."""

from typing import Any, NamedTuple

import torch

from calque.convert.calls import Call, array_of, leaves
from calque.convert.named_arguments import named_arguments
from calque.convert.names import name_of
from calque.convert.tensor_infos import TensorInfo
from calque.tracing.core.origins import NodeOrigin
from calque.tracing.record.events import ModuleCall
from calque.tracing.record.inputs_outputs import mapped
from calque.tracing.record.values import RunValue


class Opened(NamedTuple):
    """A call of a module that is inlined although it has a converter.

    Attributes:
        op: its class, such as `"torch.nn.Linear"`.
        path: the path of the module in the program.
        source: the line that calls it; None if not known.
        reason: why one call cannot represent it.
    """

    op: str
    path: str
    source: NodeOrigin | None
    reason: str


def call_of(made: ModuleCall) -> Call:
    """Returns a call of a module in the form for converters, without names of tensors."""
    given = mapped(made.args, _info), mapped(made.kwargs, _info)
    arguments = named_arguments("module", made.module, *given)
    inputs, outputs = _tensors(arguments), _tensors(mapped(made.result, _info))
    members = (*made.module.named_parameters(), *made.module.named_buffers())
    weights = {name: array_of(tensor) for name, tensor in members}
    named = made.path, name_of(type(made.module)), "module", made.module, arguments
    return Call(*named, inputs, outputs, weights, made.origin(), made.path)


def _tensors(value: object) -> list[TensorInfo]:
    return [leaf for leaf in leaves(value) if type(leaf) is TensorInfo]


def _info(leaf: object) -> Any:
    if type(leaf) is RunValue and leaf.looks is not None:
        return TensorInfo("", leaf.looks.shape, _named(leaf.looks.dtype))
    if isinstance(leaf, torch.Tensor):
        return TensorInfo("", tuple(leaf.shape), _named(leaf.dtype))
    return leaf


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
