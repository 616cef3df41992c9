"""Values that a program has read into Python, in the form for files: a tensor and its value.

Reads of several tensors (`torch.equal`) become operators that compute one boolean, which is read.
The text of a single number is described by the number's format; other text is not supported.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.convert.errors import ConversionError
from calque.tracing.core.origins import origin_of
from calque.tracing.graph.purity import TracedGraph
from calque.tracing.graph.value_guards import expect_answer

_OF_ONE = frozenset(("item", "tolist", "__bool__", "__int__", "__float__", "__index__"))
_OF_ONE |= {"numpy", "__array__", "is_nonzero", "aten._local_scalar_dense.default"}
SPEC = re.compile(r"[^0-9]{0,3}[0-9]{0,2}[,_]?(\.[0-9]{1,2})?[a-zA-Z%]?")
"""A short format of a number, such as `.3f`."""

_aten = torch.ops.aten


class TensorRead(NamedTuple):
    """A read of one tensor.

    Attributes:
        tensor: the tensor.
        answers: the values that it returned, one for each guard.
        spec: the format, if it returned text.
    """

    tensor: Node
    answers: list[Any]
    spec: str | None


def is_read(node: Node) -> bool:
    """Returns True if a guard compares a node's result."""
    return any(user.target is expect_answer for user in node.users)


def read_of(graph: GraphModule, node: Node) -> TensorRead:
    """Returns the read that a node performs, which describes its guards.

    Raises:
        ConversionError: a file cannot express the read.
    """
    guards = [user for user in node.users if user.target is expect_answer]
    answers = [_plain(_member(graph, str(guard.args[1])).value) for guard in guards]
    name, spec = name_of(node), None
    first, *rest = node.args or (None,)
    if name == "__format__" and _is_number(first) and not node.kwargs:
        spec = str(rest[0]) if rest else ""
    is_plain = name in _OF_ONE if spec is None else SPEC.fullmatch(spec) is not None
    tensors = node.all_input_nodes
    if not is_plain or len(tensors) != 1 or first is not tensors[0]:
        raise ConversionError(
            f"{origin_of(node)}: {name} reads a value into Python, which this format cannot "
            "check.\n"
            "Keep it a tensor, or save the part of the program that does not read it."
        )
    return TensorRead(tensors[0], answers, spec)


def name_of(node: Node) -> str:
    """Returns the method or function that a node calls."""
    target: Any = node.target
    is_operator = isinstance(target, str) or hasattr(target, "_schema")
    return str(target) if is_operator else getattr(target, "__name__", str(target))


def _plain(answer: object) -> Any:
    return answer.tolist() if isinstance(answer, (np.ndarray, np.generic)) else answer


def _is_number(node: object) -> bool:
    val = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(val, torch.Tensor) and val.dim() == 0


def _member(root: object, target: str) -> Any:
    for part in target.split("."):
        root = getattr(root, part)
    return root


# Reads of several tensors


def with_single_reads(graph: GraphModule) -> GraphModule:
    """Returns the graph, or a copy in which operators combine reads of several tensors."""
    if not any(map(_is_of_several, graph.graph.nodes)):
        return graph
    copied, known = TracedGraph(), {}
    result = copied.graph_copy(graph.graph, known)
    copied.output(result).meta = dict(graph.graph.output_node().meta)
    for node in filter(_is_of_several, list(copied.nodes)):
        with copied.inserting_before(node):
            combined = _SEVERAL[_packet(node)](_Adding(node), *node.args, **node.kwargs)
            read = copied.call_method("__bool__", (combined,))
        read.meta = dict(node.meta)
        node.replace_all_uses_with(read)
        copied.erase_node(node)
    return GraphModule(graph, copied)


def _is_of_several(node: Node) -> bool:
    calls = node.op.startswith("call") and is_read(node)
    return calls and _packet(node) in _SEVERAL


def _packet(node: Node) -> str:
    return name_of(node).removeprefix("aten.").partition(".")[0]


class _Adding:
    """Adds operators to a graph before a node."""

    def __init__(self, node: Node) -> None:
        self._graph, self._meta = node.graph, node.meta

    def __call__(self, operator: Any, *args: Any, **kwargs: Any) -> Node:
        made = self._graph.call_function(operator, args, kwargs)
        vals = torch.fx.map_arg((args, kwargs), lambda node: node.meta["val"])
        with torch.no_grad():
            made.meta = {**self._meta, "val": operator(*vals[0], **vals[1])}
        return made


def _equal(add: _Adding, a: Node, other: Node) -> Node:
    if a.meta["val"].shape != other.meta["val"].shape:
        return add(_aten.full.default, [], False, dtype=torch.bool, device=torch.device("cpu"))
    return add(_aten.all.default, add(_aten.eq.Tensor, a, other))


def _close(add: _Adding, *args: Any, **kwargs: Any) -> Node:
    return add(_aten.all.default, add(_aten.isclose.default, *args, **kwargs))


def _contains(add: _Adding, tensor: Node, element: object) -> Node:
    same = _aten.eq.Tensor if isinstance(element, Node) else _aten.eq.Scalar
    return add(_aten.any.default, add(same, tensor, element))


def _left_aligned(add: _Adding, tensor: Node, mask: Node) -> Node:
    """Returns a node for whether the True elements of each row of a mask come first."""
    ones = add(_aten._to_copy.default, mask, dtype=torch.int64)
    end = mask.meta["val"].shape[1] + 1
    places = add(_aten.arange.start, 1, end, device=torch.device("cpu"), pin_memory=False)
    last = add(_aten.amax.default, add(_aten.mul.Tensor, ones, places), [1])
    return add(_aten.all.default, add(_aten.eq.Tensor, last, add(_aten.sum.dim_IntList, ones, [1])))


_SEVERAL: dict[str, Callable[..., Node]] = {
    "__contains__": _contains,
    "equal": _equal,
    "allclose": _close,
    "_nested_tensor_from_mask_left_aligned": _left_aligned,
}
