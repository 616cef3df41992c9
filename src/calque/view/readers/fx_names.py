"""Names of the functions and modules that nodes of torch.fx call."""

import re
from functools import cache
from typing import Any

import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.upstream.torch_internals import HigherOrderOperator, OpOverload, OpOverloadPacket

_INPUT = re.compile(r"^[lL]_(?:\w+?_)??modules_")


def op_of(module: GraphModule, node: Node) -> str:
    """Returns the name of a node's function: `Linear`, `Tensor.relu`, `aten.relu.default`,
    `torch.cat`.
    """
    if node.op == "call_module":
        return type(member(module, node)).__name__
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if node.op != "call_function":
        return str(node.target)
    target: Any = node.target
    if id(target) in _nameless():
        return _nameless()[id(target)]
    if isinstance(target, OpOverload | OpOverloadPacket):
        return str(target)
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target.name()}"
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    home = getattr(target, "__module__", None) or ""
    home = {"_operator": "operator", "torch._C._nn": "torch.nn.functional"}.get(home, home)
    name = str(name or type(target).__name__).removeprefix("_VariableFunctionsClass.")
    return f"{home}.{name}" if home and not name.startswith(home) else name


@cache
def _nameless() -> dict[int, str]:
    """Returns the functions of PyTorch that do not know their public name."""
    members = vars(torch.nn.functional).items()
    return {
        id(function): f"torch.nn.functional.{name}"
        for name, function in members
        if "<locals>" in getattr(function, "__qualname__", "")
    }


def label_of(node: Node, op: str) -> str:
    """Returns a short name of a node's function."""
    if node.op == "call_module":
        return f"{str(node.target).rpartition('.')[2]}: {op}"
    if node.op == "get_attr":
        return str(node.target)
    if node.op == "placeholder":
        if not _INPUT.match(node.name):
            return str(node.target)
        path = re.sub(r"_(modules|parameters|buffers)_", ".", "_" + _INPUT.sub("", node.name))
        return path.strip("_.")
    if node.op == "output":
        return "output"
    parts = op.split(".")
    if isinstance(node.target, OpOverload):
        return parts[1] if parts[-1] == "default" else ".".join(parts[1:])
    return parts[-1].strip("_") or parts[-1]


def member(module: GraphModule, node: Node) -> Any:
    """Returns the member that a node calls or gets, found by its path; None if there is none."""
    found: Any = module
    for part in str(node.target).split("."):
        found = getattr(found, part, None)
    return found
