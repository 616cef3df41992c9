"""Values that a graph refers to by the name of an attribute of its root."""

from typing import Any, get_args

import torch
from torch._library.fake_class_registry import FakeScriptObject
from torch._library.opaque_object import is_opaque_reference_type
from torch.fx._symbolic_trace import _ConstantAttributeType
from torch.fx._symbolic_trace import _proxyable_classes as _torch_proxyable
from torch.fx.node import Argument
from torch.utils import _pytree as pytree

from calque.trace.proxyable import proxyable_classes

_CONSTANTS = get_args(_ConstantAttributeType)
_BASE_NAMES: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, "_tensor_constant"),
    ((FakeScriptObject, torch.ScriptObject), "_torchbind_obj"),
    (pytree.TreeSpec, "_tree_spec_constant"),
)
_PLAIN = frozenset((int, float, bool, str, type(None), tuple, list, dict, slice, torch.Size))


def constant_argument(tracer: Any, a: Any) -> Argument:
    """`Tracer.create_arg`: members of the root, constants, named tuples, then the base's table."""
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
    if kind in proxyable_classes or kind in _torch_proxyable:
        name = tracer.get_fresh_qualname(f"_{kind.__name__}_constant_")
        tracer.keep(name, a)
        return tracer.create_node("get_attr", name, (), {})
    return tracer._lower(a)


def _attribute(tracer: Any, a: Any) -> str:
    """The name of the root's attribute that is `a`; a new one where there is none."""
    name = tracer.tensor_attrs.get(a)
    if not name:
        base = next((base for kinds, base in _BASE_NAMES if isinstance(a, kinds)), "_opaque_obj")
        name = tracer.get_fresh_qualname(base)
        tracer.tensor_attrs[a] = name
        tracer.keep(name, a)
    return name
