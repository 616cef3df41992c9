"""`Restoring`: traces the code of a graph that is unpickled, to rebuild the graph.

torch.fx unpickles a graph module by tracing its code. The code of a recording reads values of
tensors (`x.__bool__()`, `x.tolist()`), and each such call must become a node again.
"""

import inspect
from collections.abc import Callable
from typing import Any

from torch.fx.graph import Graph
from torch.fx.node import Argument, Node

from calque.tracing.abstract.abstract_values import AbstractValues
from calque.tracing.graph.node_facts import ATTRIBUTE, NodeFacts
from calque.tracing.graph.templates import ObjectTemplate
from calque.tracing.symbolic.symbolic_proxies import ValueAttribute, ValueProxy
from calque.tracing.symbolic.symbolic_tracer import SymbolicTracer

_READS = (
    *("__bool__", "__len__", "__int__", "__float__", "__complex__", "__index__", "__contains__"),
    *("__str__", "__repr__", "__format__", "__array__", "__reduce_ex__", "__iter__", "__hash__"),
    *("__reversed__", "__array_wrap__", "__dlpack__", "__dlpack_device__", "__dir__"),
)


class _GraphProxy(ValueProxy):
    """A proxy in the code of a graph, on which every call becomes a node."""

    def __getattr__(self, k: str) -> Any:
        if k.startswith("__") and k.endswith("__"):
            raise AttributeError(k)
        return self.tracer.read(_GraphAttribute(self, k))  # pyright: ignore[reportAttributeAccessIssue]


class _GraphAttribute(ValueAttribute):
    """An attribute that is a method, or is read in a line of its own, before the next node."""

    @property
    def node(self) -> Node:
        self.tracer.is_used(self)  # pyright: ignore[reportAttributeAccessIssue]
        return super().node

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.tracer.is_used(self)  # pyright: ignore[reportAttributeAccessIssue]
        return super().__call__(*args, **kwargs)


def _call_of(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.create_proxy("call_method", name, (self, *args), kwargs)

    return method


for _name in _READS:
    setattr(_GraphProxy, _name, _call_of(_name))


class Restoring(SymbolicTracer):
    """Like `SymbolicTracer`, for the generated code of a graph."""

    restores = True
    _unused: Any = None

    def read(self, attribute: Any) -> Any:
        """Returns an attribute that becomes a node now, because what follows may change it, unless
        it is called.
        """
        self._settle()
        self._unused = attribute
        return attribute

    def is_used(self, attribute: object) -> None:
        """Note that an attribute is a method, or a node."""
        if self._unused is attribute:
            self._unused = None

    def _settle(self) -> None:
        attribute = self._unused
        if attribute is not None:
            attribute.node  # noqa: B018

    def create_node(self, *args: Any, **kwargs: Any) -> Node:
        """Like `Tracer.create_node`, but an attribute read before becomes a node first."""
        self._settle()
        return super().create_node(*args, **kwargs)

    def trace(self, root: Any, *args: Any, **options: Any) -> Graph:
        """Returns the graph, with what was known of its nodes when it was pickled."""
        graph = super().trace(root, *args, **options)
        facts = vars(root).pop(ATTRIBUTE, None) or NodeFacts()
        facts.restore(graph, AbstractValues(root.get_parameter).made_from)
        return graph

    def proxy(self, node: Node) -> Any:
        """Returns the proxy of any value."""
        return _GraphProxy(node, self)

    tensor_proxy = proxy

    def _proxy_placeholder(
        self, name: str, concrete_args: object, sig: inspect.Signature, fn_for_analysis: object
    ) -> Any:
        """Returns an input with the default from the code; the code contains the input's checks."""
        default = () if name.startswith("*") else (sig.parameters[name].default,)
        default = () if default == (inspect.Parameter.empty,) else default
        return self.create_proxy("placeholder", name, default, {})

    def keep(self, name: str, value: Any) -> None:
        """Like `NamingTracer.keep`, but also sets the member on the root, from which unpickling
        takes members.
        """
        super().keep(name, value)
        setattr(self.root, name, value)

    def create_arg(self, a: Any) -> Argument:
        """Like `Tracer.create_arg`, but objects that the graph keeps become nodes."""
        if type(a) is ObjectTemplate:  # not taken apart like other named tuples
            return self._member(a)
        try:
            return super().create_arg(a)
        except NotImplementedError:
            return self._member(a)

    def _member(self, a: object) -> Argument:
        name = next((name for name, value in vars(self.root).items() if value is a), None)
        if name is None:
            name = self.get_fresh_qualname("_object")
            self.keep(name, a)
        return self.create_node("get_attr", name, (), {})
