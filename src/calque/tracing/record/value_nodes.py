"""The nodes of a recording's graph: each at the line of its event, and for each value its node."""

import contextlib
import operator
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.graph import Graph
from torch.fx.node import Argument, Node

from calque.tracing.core.origins import NodeOrigin
from calque.tracing.graph.purity import TracedGraph
from calque.tracing.record.events import ModuleCall
from calque.tracing.record.inputs_outputs import mapped
from calque.tracing.record.keeping import edited
from calque.tracing.record.known import KnownValues, is_plain
from calque.tracing.record.returned_arguments import ReturnedArguments
from calque.tracing.record.values import RunValue, values_in
from calque.tracing.symbolic.assumptions import Assumptions
from calque.tracing.tracer.naming import NamingTracer
from calque.upstream import torch_c


class ValueNodes(NamingTracer):
    """Makes nodes, and knows which node computes which value of the run."""

    graph_type: type[Graph] = TracedGraph
    records_origins = False
    decorated = False

    def __init__(self) -> None:
        super().__init__()
        self._env: dict[RunValue, Node] = {}
        self._returned_arguments = ReturnedArguments(self.resolve)
        self._parts: list[Node] = []
        self.assumed: Assumptions = Assumptions()
        self._origin: NodeOrigin | None = None
        self.abstract: KnownValues = KnownValues(self.resolve)

    def create_node(self, *args: Any, **kwargs: Any) -> Node:
        """Like `TracerBase.create_node`, at the line of the event."""
        node = super().create_node(*args, **kwargs)
        self.assumed.follow(node)
        if node.op == "get_attr" and "val" not in node.meta:
            value = self.resolve(str(node.target))
            if isinstance(value, torch.Tensor):
                node.meta["val"] = self.abstract.of_member(value)
        origin = self._origin
        if origin is not None:
            node.meta["origin"] = origin
            place = f'File "{origin.file}", line {origin.line}, in {origin.function}'
            node.meta.setdefault("stack_trace", place)
        return node

    def create_arg(self, a: Any) -> Argument:
        """Like `Tracer.create_arg`; values become the nodes that compute them."""
        if type(a) is RunValue:
            return self._env[a]
        if isinstance(a, Node):
            return a
        try:
            return super().create_arg(a)
        except NotImplementedError:
            name = self.get_fresh_qualname("_object")
            self.keep(name, a)
            return self.create_node("get_attr", name, (), {})

    def tensor_proxy(self, node: Node) -> torch.fx.Proxy:
        """Returns the proxy of an input tensor."""
        return torch.fx.Proxy(node)

    def _define(self, template: Any, node: Node) -> None:
        """Map the values in a result to a node and its parts."""
        if type(template) is RunValue:
            before = self._env.get(template)
            if before is not None and node.target is not edited:
                self._returned_arguments.note(before, node, self._origin)
            self._env[template] = node
            if template.looks is not None:
                node.meta["val"] = self.abstract.like(template)
                if template.asked:
                    self.assumed.ask(node, *template.asked)
            return
        if not values_in(template):
            return
        if is_plain(template):
            node.meta["val"] = mapped(template, self._abstract)
        items = template.items() if isinstance(template, dict) else enumerate(template)
        for key, part in items:
            if values_in(part):
                child = self.create_node("call_function", operator.getitem, (node, key), {})
                self._parts.append(child)
                self._define(part, child)

    def _enter_module(self, call: ModuleCall | None) -> None:
        """Set the module calls that contain the following nodes."""
        chain = []
        while call is not None:
            chain.append(call)
            call = call.parent
        self.module_stack: OrderedDict[str, tuple[str, Any]] = OrderedDict()
        for each in reversed(chain):
            if each.module is not self.root:
                key = f"{each.path}@{each.number}" if each.number else each.path
                self.module_stack[key] = each.path, type(each.module)
        last = chain[0] if chain else None
        self.scope.module_path = last.path if last is not None else ""
        self.scope.module_type = type(last.module) if last is not None else None

    @contextlib.contextmanager
    def _grad_mode(self, enabled: bool | None) -> Iterator[None]:
        """A context manager in which nodes get another thread's gradient mode; None leaves it
        unchanged.
        """
        if enabled is None:
            yield
            return
        before = self.create_node("call_function", torch_c.is_grad_enabled, (), {})
        self.create_node("call_function", torch_c.set_grad_enabled, (enabled,), {})
        yield
        self.create_node("call_function", torch_c.set_grad_enabled, (before,), {})

    def _abstract(self, leaf: object) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self.abstract.of_member(leaf)
        return self.abstract.like(leaf) if type(leaf) is RunValue else leaf
