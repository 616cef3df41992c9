"""The arguments of a node as text, and the tensors in its values."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.node import Node

from calque.errors.printable import shortened
from calque.upstream.torch_internals import OpOverload, tree_leaves
from calque.view.graph import TensorLook


def arguments_of(node: Node) -> Iterator[tuple[str, str]]:
    """Returns pairs of a name, or a position, and an argument."""
    if node.op in ("placeholder", "get_attr"):
        return
    names = _names(node)
    for index, value in enumerate(node.args):
        name = names[index] if index < len(names) else str(index)
        yield name, shortened(repr(value))
    for name, value in node.kwargs.items():
        yield name, shortened(repr(value))


def _names(node: Node) -> list[str]:
    target: Any = node.target
    if node.op == "output":
        return ["result"]
    if node.op == "call_method":
        return ["self"]
    if isinstance(target, OpOverload):
        return [argument.name for argument in target._schema.arguments]
    try:
        return list(inspect.signature(target).parameters) if callable(target) else []
    except (TypeError, ValueError):  # a builtin function without a signature
        return []


def tensors_in(value: object) -> Iterator[TensorLook]:
    """Yields the looks of the tensors in nested containers."""
    for leaf in tree_leaves(value, is_leaf=_is_metadata):
        if isinstance(leaf, torch.Tensor) or _is_metadata(leaf):
            shape = tuple(n if type(n) is int else str(n) for n in leaf.shape)
            yield TensorLook(str(leaf.dtype).removeprefix("torch."), shape)


def _is_metadata(value: object) -> bool:
    return type(value).__name__ == "TensorMetadata"
