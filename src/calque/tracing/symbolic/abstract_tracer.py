"""`AbstractTracer`: its nodes have abstract values, from which a program gets shapes and dtypes."""

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.node import Node

from calque.tracing.abstract.abstract_values import UNKNOWN, AbstractValues
from calque.tracing.abstract.tensor_inference import gives_tensor
from calque.tracing.core.refusals import refuse
from calque.tracing.graph import checks
from calque.tracing.graph.purity import has_effect
from calque.tracing.symbolic.assumptions import Assumptions
from calque.tracing.symbolic.leaf_results import LeafResults
from calque.tracing.symbolic.returned_arguments import Identity
from calque.tracing.symbolic.symbolic_proxies import TensorProxy, ValueProxy
from calque.tracing.tracer.naming import NamingTracer

_CONSTANT_RESULTS = (bool, int, float, complex, str, torch.Size, torch.dtype, torch.device)


class AbstractTracer(NamingTracer):
    """Like `NamingTracer`, but values that depend only on shapes and dtypes are known while
    tracing.

    Attributes:
        abstract: the abstract values of nodes.
        assumed: what the graph takes for granted of its inputs.
        leaf_results: what leaf functions return, of unknown kinds.
        identity: which proxy stands for which tensor.
        optional: nodes that are erased if nothing uses them: their values were known.
        tensors: nodes that give tensors.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tensors: set[Node] = set()
        self.abstract: AbstractValues = AbstractValues(self.resolve)
        self.optional: dict[Node, None] = {}
        self.assumed: Assumptions = Assumptions()
        self.identity: Identity = Identity(self.assumed)
        self.leaf_results: LeafResults = LeafResults(self)

    # Proxies

    def proxy(self, node: Node) -> Any:
        """Returns a proxy of the right kind,
        or the value itself if it is known and not a tensor.
        """
        value = self._abstract(node)
        if value is UNKNOWN:
            if gives_tensor(node, self.tensors, self.resolve):
                return self.tensor_proxy(node)
            self.leaf_results.add_part(node)
            return ValueProxy(node, self)
        node.meta["val"] = value
        return self.proxy_of_known(node, value)

    def proxy_of_known(self, node: Node, value: object) -> Any:
        """Returns what the program gets for a node with the abstract value `value`."""
        if isinstance(value, torch.Tensor):
            given = self.identity.proxy_given_back(node)
            return self.tensor_proxy(node) if given is None else given
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            parts = [self.part(node, i, part) for i, part in enumerate(value)]
            plain = type(value) in (tuple, list)
            build: Any = type(value)
            return build(parts) if plain or not hasattr(value, "_fields") else build(*parts)
        if isinstance(value, dict):
            return {key: self.part(node, key, part) for key, part in value.items()}
        if isinstance(value, _CONSTANT_RESULTS) or value is None:
            if value is not None:
                for one in (node, *node.all_input_nodes):
                    self.assumed.ask(one, "shape", "dtype", "device")
            if node.op != "call_module" and not has_effect(node):  # a layer's node is kept
                self.optional[node] = None
            return value
        return ValueProxy(node, self)

    def part(self, node: Node, key: Any, value: Any) -> Any:
        """Returns the proxy of `node[key]`, whose abstract value is known."""
        if not isinstance(value, (torch.Tensor, tuple, list, dict)) and value is not UNKNOWN:
            return value
        part = self.create_node("call_function", operator.getitem, (node, key), {})
        if value is UNKNOWN:  # a gradient, or None
            self.leaf_results.add_gradient(part)
            return ValueProxy(part, self)
        part.meta["val"] = value
        self.assumed.follow(part)
        self.optional[part] = None
        return self.proxy_of_known(part, value)

    def tensor_proxy(self, node: Node) -> TensorProxy:
        """Returns the proxy of a node whose value is a tensor."""
        self.tensors.add(node)
        proxy = TensorProxy(node, self)
        self.identity.add(proxy)
        return proxy

    def _abstract(self, node: Node) -> Any:
        self.assumed.follow(node)
        if node.op == "placeholder":
            return node.meta.get("val", UNKNOWN)
        if node.op == "get_attr":
            value = self.resolve(str(node.target))
            if not isinstance(value, torch.Tensor):
                return UNKNOWN
            kept = node.target in self.kept
            return self.abstract.of(value) if kept else self.abstract.of_member(value)
        try:
            return self.abstract.compute(node)
        except Exception as error:
            origin = node.meta.get("origin")
            if origin is not None:
                error.add_note(f"while tracing {origin}: {origin.text}")
            self.graph.erase_node(node)
            raise

    def leaf_returned(self, node: Node) -> None:
        """Handles the call of a leaf function; its result may be of any kind."""
        self.leaf_results.add(node)

    # Questions of Python

    def length(self, obj: Any) -> int:
        """Returns `len(x)` from the abstract value, or refuses it."""
        shape = self._shape(obj)
        if shape is None:
            refuse(obj, "len")
        if not shape:
            raise TypeError("len() of a 0-d tensor")
        return shape[0]

    def iterate(self, obj: Any, unpacked: int | None) -> Iterator[Any]:
        """Handles `for part in x` and `a, b = x`; the latter determines the number of parts."""
        shape = self._shape(obj)
        if shape is not None:
            if not shape:
                raise TypeError("iteration over a 0-d tensor")
            return iter(self.create_proxy("call_method", "unbind", (obj,), {}))
        if unpacked is None:
            refuse(obj, "iterate")
        parts = self.create_proxy("call_function", checks.unpack, (obj, unpacked), {})
        nodes = [
            self.create_node("call_function", operator.getitem, (parts.node, i), {})
            for i in range(unpacked)
        ]
        if obj.is_tensor:
            return iter([*map(self.tensor_proxy, nodes)])
        for i, node in enumerate(nodes):
            self.leaf_results.add_part(node, i)
        return iter([ValueProxy(node, self) for node in nodes])

    def _shape(self, obj: Any) -> torch.Size | None:
        value = obj.node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return None
        self.assumed.ask(obj.node, "shape")
        return value.shape
