"""`without_complex`: replaces complex numbers with pairs of real ones, because ONNX has none.

A complex tensor becomes a real one with a last axis of two elements, like `torch.view_as_real`. The
rules are in `onnx_complex_rules`.
"""

import contextlib
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.convert.errors import ConversionError
from calque.convert.onnx_complex_rules import RULES, Pair
from calque.upstream.torch_internals import FakeTensor, OpOverload, pytree


def without_complex(graph: GraphModule, computed: Callable[[Node], Any]) -> None:
    """Replaces the complex operators of a graph, in place.

    Args:
        graph: a graph of operators, with `val` in their `meta`.
        computed: returns the value of a node that does not depend on inputs, otherwise None.

    Raises:
        ConversionError: an input is complex, or an operator has no rule; all of them are listed.
    """
    pairs, failed = _Pairs(graph, computed), []
    for node in list(graph.graph.nodes):
        if node.op == "placeholder" and _is_complex(node.meta.get("val")):
            failed.append(f"the input {node.target}")
        elif node.op == "get_attr":
            pairs.add(node, operator.attrgetter(str(node.target))(graph))
        elif node.target is operator.getitem and isinstance(pairs.of.get(node.args[0]), list):
            pairs.of[node] = pairs.of[node.args[0]][node.args[1]]
        elif isinstance(node.target, OpOverload) and pairs.concern(node):
            if not pairs.rewrite(node) and not any(map(pairs.lack, node.all_input_nodes)):
                failed.append(f"{node.target} at {node.meta.get('origin')}")
    for result in graph.graph.output_node().all_input_nodes:
        if _is_complex(result.meta.get("val")) and not failed:
            failed.append("the result: return torch.view_as_real(x)")
    if failed:
        listed = "\n    ".join(dict.fromkeys(failed))
        raise ConversionError(f"complex numbers cannot be expressed in ONNX in\n    {listed}")


def _is_complex(value: object) -> bool:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(part, Tensor) and part.is_complex() for part in values)


class _Pairs:
    """The real nodes that replace complex ones.

    Attributes:
        of: the replacement of each complex node; a list for one with several results.
    """

    def __init__(self, graph: GraphModule, computed: Callable[[Node], Any]) -> None:
        self.of: dict[Node, Any] = {}
        self._graph, self._computed = graph, computed
        vals = (node.meta.get("val") for node in graph.graph.nodes)
        self._mode: Any = next((v.fake_mode for v in vals if isinstance(v, FakeTensor)), None)

    def concern(self, node: Node) -> bool:
        """Returns True for an operator that takes or gives complex numbers."""
        is_given = any(given in self.of for given in node.all_input_nodes)
        return (
            is_given
            or _is_complex(node.meta.get("val"))
            or any(map(self.lack, node.all_input_nodes))
        )

    def lack(self, node: Node) -> bool:
        """Returns True for a complex node without a replacement."""
        return node not in self.of and _is_complex(node.meta.get("val"))

    def add(self, node: Node, value: Any) -> None:
        """Add the replacement of a complex constant."""
        if _is_complex(value):
            with self._graph.graph.inserting_before(node):
                pair = torch.view_as_real(value.detach().resolve_conj()).clone()
                self.of[node] = self._constant(pair, node)

    def rewrite(self, node: Node) -> bool:
        """Replaces an operator; returns False if there is no rule for it."""
        target: Any = node.target
        name = target._schema.name.partition("::")[2]
        inner = self._consists_of(node, RULES[name]) if name in RULES else None
        if inner is None:
            value = self._computed(node)
            if isinstance(value, Tensor) and value.is_complex():
                self.add(node, value)
            return value is not None
        graph = self._graph.graph
        given = [self.of.get(leaf, leaf) for leaf in _leaves(node) if isinstance(leaf, Node)]
        found = dict(zip(inner.graph.find_nodes(op="placeholder"), given, strict=True))
        with graph.inserting_before(node):
            for part in inner.graph.nodes:
                if part.op == "get_attr":
                    found[part] = self._constant(getattr(inner, str(part.target)), node)
                elif part.op == "call_function":
                    found[part] = graph.node_copy(part, found.__getitem__)
                    found[part].meta = {**node.meta, "val": part.meta.get("val")}
        result: Any = inner.graph.output_node().args[0]
        made: Any = torch.fx.map_arg(result, found.__getitem__)
        if _is_complex(node.meta.get("val")):
            self.of[node] = made if isinstance(made, Node) else list(made)
        else:
            node.replace_all_uses_with(made)
            graph.erase_node(node)
        return True

    def _constant(self, tensor: Tensor, place: Node) -> Node:
        name = f"_real_{len(self._graph.graph.nodes)}"
        self._graph.register_buffer(name, tensor)
        node = self._graph.graph.get_attr(name)
        node.meta = {**place.meta, "val": self._mode.from_tensor(tensor) if self._mode else tensor}
        return node

    def _consists_of(self, node: Node, rule: Callable[..., Any]) -> GraphModule | None:
        """Returns the operator on real numbers, with its tensors as inputs; None if the rule does
        not apply.
        """
        leaves, form = pytree.tree_flatten((node.args, node.kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Node)]
        vals = [self.of.get(leaves[i], leaves[i]).meta.get("val") for i in places]
        if not all(isinstance(val, Tensor) and not val.is_complex() for val in vals):
            return None

        def call(*tensors: Tensor) -> Any:
            given = list(leaves)
            for i, tensor in zip(places, tensors, strict=True):
                is_pair = leaves[i] in self.of
                given[i] = Pair(tensor.select(-1, 0), tensor.select(-1, 1)) if is_pair else tensor
            args, kwargs = pytree.tree_unflatten(given, form)
            found = rule(node.target, *args, **kwargs)
            return [part.joined() for part in found] if type(found) is list else _joined(found)

        with torch.no_grad(), self._mode or contextlib.nullcontext():
            try:
                inner = graph_of(call, vals)
                return inner if _gives(inner, node) else None
            except (RuntimeError, NotImplementedError, TypeError, ValueError):
                return None  # the operator is then reported as not convertible


def graph_of(call: Callable[..., Any], vals: list[Any], table: Any = None) -> GraphModule:
    """Returns the graph of the operators that a function runs, none of which writes.

    Args:
        table: decompositions of operators.
    """
    made = make_fx(call, decomposition_table=table)(*vals)
    if any(_writes(node) for node in made.graph.nodes):  # `x @ y` squeezes its own result
        made = make_fx(torch.func.functionalize(made, remove="mutations"))(*vals)
    return made


def _writes(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _leaves(node: Node) -> list[Any]:
    return pytree.tree_leaves((node.args, node.kwargs))


def _gives(inner: GraphModule, node: Node) -> bool:
    """Returns True if the results have the shapes and dtypes of an operator's."""
    found = _listed(inner.graph.output_node().args[0])
    expected = _listed(node.meta.get("val"))
    return len(found) == len(expected) and all(
        part.meta["val"].shape == (*val.shape, *([2] if val.is_complex() else []))
        and part.meta["val"].dtype == (val.dtype.to_real() if val.is_complex() else val.dtype)
        for part, val in zip(found, expected)
    )


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _joined(found: Any) -> Tensor:
    return found.joined() if isinstance(found, Pair) else found
