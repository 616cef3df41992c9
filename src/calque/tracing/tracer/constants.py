"""Constants that a graph refers to by the name of an attribute of its root."""

import enum
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any, get_args

import numpy as np
import torch
from torch.fx.node import Argument, Node

from calque.tracing.core.refusals import refuse_because
from calque.tracing.core.variables import read_cell
from calque.tracing.graph.effects import writes_to_input
from calque.tracing.graph.purity import has_effect
from calque.tracing.proxies.proxy import has_proxy
from calque.tracing.proxies.proxyable import proxyable_classes
from calque.upstream import torch_c
from calque.upstream.torch_internals import (
    ConstantAttributeType,
    FakeScriptObject,
    fx_proxyable_classes,
    is_opaque_reference_type,
    pytree,
)

_CONSTANTS = get_args(ConstantAttributeType)
_BASE_NAMES: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, "_tensor_constant"),
    ((FakeScriptObject, torch.ScriptObject), "_torchbind_obj"),
    (pytree.TreeSpec, "_tree_spec_constant"),
)
_IMMUTABLE = (bytes, frozenset, type, BuiltinFunctionType, MethodDescriptorType, np.dtype)
_LITERALS = (int, float, complex, str)
_PLAIN = frozenset((int, float, bool, str, type(None), tuple, list, dict, slice, torch.Size))


def constant_argument(tracer: Any, a: Any) -> Argument:
    """Implements `Tracer.create_arg`: members of the root, constants, named tuples,
    then the base class's table.
    """
    kind = type(a)
    if kind in _PLAIN or isinstance(a, torch.fx.Proxy):
        return tracer._lower(a)
    root = tracer.root
    if isinstance(a, torch.nn.Parameter):
        name = tracer._name_of(a, root.named_parameters)
        if name is None:
            raise NameError("parameter is not a member of this module")
        return tracer.create_node("get_attr", name, (), {})
    if isinstance(a, torch.Tensor):
        name = tracer._name_of(a, root.named_buffers)
        if name is not None:
            return tracer.create_node("get_attr", name, (), {})
    elif isinstance(a, torch.nn.Module):
        for name, module in root.named_modules():
            if module is a:
                return tracer.create_node("get_attr", name, (), {})
    if isinstance(a, tuple) and hasattr(a, "_fields"):
        parts = tuple(tracer.create_arg(part) for part in a)
        return tracer.create_node("call_function", kind, parts, {})
    if isinstance(a, _CONSTANTS) or is_opaque_reference_type(kind):
        return tracer.create_node("get_attr", _attribute(tracer, a), (), {})
    if kind in proxyable_classes or kind in fx_proxyable_classes:
        name = tracer.get_fresh_qualname(f"_{kind.__name__}_constant_")
        tracer.keep(name, a)
        return tracer.create_node("get_attr", name, (), {})
    return tracer._lower(a)


def _attribute(tracer: Any, a: Any) -> str:
    """Returns the name of the root's attribute that is `a`; a new name if there is none."""
    name = tracer.tensor_attrs.get(a)
    if not name:
        base = next((base for kinds, base in _BASE_NAMES if isinstance(a, kinds)), "_opaque_obj")
        name = tracer.get_fresh_qualname(base)
        tracer.tensor_attrs[a] = name
        tracer.keep(name, a)
    return name


def is_constant(a: Any) -> bool:
    """Returns True if `a` is not a literal, but an object that a graph passes on unchanged."""
    if type(a) in _PLAIN:
        return False
    if isinstance(a, FunctionType):
        return not has_proxy(map(read_cell, a.__closure__ or ()))
    if isinstance(a, (enum.Enum, np.generic)):
        return False
    inherits = isinstance(a, _LITERALS) and type(a) not in (*_LITERALS, bool)
    return inherits or isinstance(a, _IMMUTABLE)


class Constants:
    """Refuses writes to tensors that are neither inputs nor members of the root.

    If such a tensor was created inside the program, by a function that PyTorch does not report,
    each run should create a new one. If it was created outside, writes would persist between runs.
    """

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._storages: dict[int, Any] = {}

    def check(self, node: Node) -> None:
        """Check a node that was just created.

        Raises:
            TraceError: it writes to a constant or to a view of one.
        """
        if node.op == "get_attr":
            value = self._tracer.kept.get(node.target)
            is_tensor = isinstance(value, torch.Tensor)
            if is_tensor and torch_c.functorch.is_functorch_wrapped_tensor(value):
                refuse_because(
                    self._tracer,
                    "takes a tensor of torch.vmap or torch.func, which a graph cannot keep",
                    "Call the function that it transforms without traced tensors, or make the "
                    "function around it a leaf: calque.tracing.wrap.",
                )
            if is_tensor and not isinstance(value, torch.nn.Parameter):
                known = node.meta["val"] = self._tracer.abstract.of(value)
                self._storages[_storage(known)] = known
        elif self._storages and node.args and self._writes(node):
            source = node.args[0]
            value = source.meta.get("val") if isinstance(source, Node) else None
            if isinstance(value, torch.Tensor) and _storage(value) in self._storages:
                refuse_because(
                    self._tracer,
                    "writes to a tensor that is neither an input nor part of the traced module",
                    "Pass it as an argument, register it as a buffer, or write to a clone() of it.",
                )

    def _writes(self, node: Node) -> bool:
        if node.op == "call_module":
            return writes_to_input(self._tracer.resolve(str(node.target)))
        return node.op != "output" and has_effect(node)


def _storage(value: torch.Tensor) -> int:
    """Returns an identifier of a tensor's memory; for a sparse tensor, which has no storage, its
    own id.
    """
    if value.layout != torch.strided:
        return id(value)
    with torch_c.DisableTorchFunction():
        return value.untyped_storage()._cdata
