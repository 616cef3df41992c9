"""Whether a node's value is a tensor, told from its operation alone.

Where nothing is known (a function of the user's, an operator with overloads of both kinds), the
value is taken for an unknown Python object, which answers fewer questions.
"""

import functools
import inspect
import operator
from typing import Any

import torch
from torch.fx.node import Node

_TENSOR_PROPERTIES = frozenset(("T", "mT", "H", "mH", "real", "imag", "data"))
_OPERATORS = frozenset(
    function
    for name, function in vars(operator).items()
    if not name.startswith("_") and callable(function)
    if name not in ("contains", "countOf", "indexOf", "truth", "not_", "is_", "is_not", "setitem")
)


@functools.lru_cache(maxsize=4096)
def _operator_gives_tensor(name: str) -> bool:
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    if name in ("__getitem__", "expand_as", "type_as", "to") or name.startswith("__i"):
        return True
    return bool(schemas) and all(
        len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor"
        for schema in schemas
        if not _is_scalar_overload(schema)
    )


def _is_scalar_overload(schema: Any) -> bool:
    """TorchScript has overloads of arithmetic for numbers; they take no tensor."""
    return not any("Tensor" in str(argument.type) for argument in schema.arguments) and any(
        str(result.type) in ("int", "float", "number", "bool", "Scalar", "complex")
        for result in schema.returns
    )


@functools.lru_cache(maxsize=1024)
def _function_gives_tensor(function: Any) -> bool:
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__name__", "")
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        overload = function if isinstance(function, torch._ops.OpOverload) else None
        returns = overload._schema.returns if overload is not None else ()
        return len(returns) == 1 and str(returns[0].type) == "Tensor"
    if inspect.isbuiltin(function):
        return _operator_gives_tensor(name)
    if module.startswith("torch"):
        annotation = getattr(function, "__annotations__", {}).get("return")
        return annotation in (torch.Tensor, "Tensor", "torch.Tensor")
    return False


def gives_tensor(node: Node, tensors: set[Node], root: Any) -> bool:
    """Whether the value of a node is a tensor.

    Args:
        node: any node but an output.
        tensors: the nodes before it that are known to give tensors.
        root: finds what a `call_module` or `get_attr` names.
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
    return (
        annotation is None or annotation is torch.Tensor or annotation in ("Tensor", "torch.Tensor")
    )
