"""Tells from a node's operation alone whether its value is a tensor.

If nothing is known (a function of the user, an operator with overloads of both kinds), the value is
treated as an unknown Python object, which supports less.
"""

import functools
import inspect
import operator
from typing import Any, get_args

import torch
from torch.fx.node import Node

from calque.upstream import torch_c
from calque.upstream.torch_internals import OpOverload, OpOverloadPacket

_TENSOR_PROPERTIES = frozenset(("T", "mT", "H", "mH", "real", "imag", "data"))
_OPERATORS = frozenset(
    function
    for name, function in vars(operator).items()
    if not name.startswith("_") and callable(function)
    if name not in ("contains", "countOf", "indexOf", "truth", "not_", "is_", "is_not", "setitem")
)


@functools.lru_cache(maxsize=4096)
def _operator_gives_tensor(name: str) -> bool:
    if name in ("__getitem__", "to") or name.startswith("__i"):
        return True
    schemas = torch_c.jit_get_schemas_for_operator(f"aten::{name}")
    of_tensors = [schema for schema in schemas if any(map(_takes_tensor, schema.arguments))]
    return bool(schemas) and all(
        len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor"
        for schema in of_tensors or schemas
    )


def _takes_tensor(argument: Any) -> bool:
    """TorchScript has overloads for numbers and strings under the same names."""
    return "Tensor" in str(argument.type)


@functools.lru_cache(maxsize=1024)
def _function_gives_tensor(function: object) -> bool:
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__name__", "")
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        overload = function if isinstance(function, OpOverload) else None
        returns = overload._schema.returns if overload is not None else ()
        return len(returns) == 1 and str(returns[0].type) == "Tensor"
    if inspect.isbuiltin(function):
        return _operator_gives_tensor(name)
    if module.startswith("torch"):
        annotation = getattr(function, "__annotations__", {}).get("return")
        return annotation in (torch.Tensor, "Tensor", "torch.Tensor")
    return False


def gives_tensor(node: Node, tensors: set[Node], root: Any) -> bool:
    """Returns True if the value of a node is a tensor.

    Args:
        node: any node but an output.
        tensors: the earlier nodes that are known to return tensors.
        root: returns the target of a `call_module` or `get_attr`, by name.
    """
    target: Any = node.target
    if node.op == "placeholder":
        return _annotation_allows_tensor(node) and not str(target).startswith("*")
    if node.op == "get_attr":
        return isinstance(root(target), torch.Tensor)
    if node.op == "call_method":
        return node.args[0] in tensors and _operator_gives_tensor(target)
    if node.op == "call_module":
        annotation = getattr(root(target).forward, "__annotations__", {}).get("return")
        return annotation in (torch.Tensor, "Tensor", "torch.Tensor")
    if target is getattr:
        return node.args[0] in tensors and node.args[1] in _TENSOR_PROPERTIES
    if target in _OPERATORS:
        return any(arg in tensors for arg in node.args if isinstance(arg, Node))
    return _function_gives_tensor(target)


def _annotation_allows_tensor(node: Node) -> bool:
    annotation = node.type
    if node.args and not isinstance(node.args[0], torch.Tensor) and node.args[0] is not None:
        return False
    if annotation in (None, Any, torch.Tensor, "Tensor", "torch.Tensor", "Any"):
        return True
    return torch.Tensor in get_args(annotation)
