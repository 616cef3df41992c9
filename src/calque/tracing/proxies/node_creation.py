"""The part of a tracer that appends nodes to a graph.

`TracerBase` has the extension points of torch.fx's class of that name, with the same meaning, so
that subclasses written for one work with the other.
"""

import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch.fx
import torch.fx.traceback as fx_traceback
from torch.fx.graph import Graph
from torch.fx.node import Argument, Node, Target
from torch.fx.operator_schemas import check_for_mutable_operation

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.core.inherited import inherit
from calque.tracing.core.node_arguments import lower
from calque.tracing.core.origins import is_engine, origin_here, origin_of_code
from calque.tracing.core.scope import Scope
from calque.upstream.torch_internals import CapturedTraceback


class TracerBase:
    """Creates nodes and the proxies for their values.

    Attributes:
        graph: the graph that nodes are appended to.
        record_stack_traces: put the Python stack into `node.stack_trace` as text.
        check_mutable_operations: refuse functions whose schema changes an argument.
        trace_asserts: an `assert` on a proxy becomes a node instead of an error.
        records_origins: put the line of the program into `node.meta["origin"]`.
        proxy_buffer_attributes: reading a buffer of a module gives a proxy, as a parameter does.
        traced_func_name: the method that is traced when the root is a module.
        scope: the module whose forward is running.
        module_stack: the running module calls, outermost first: key to (path, type).
        node_name_to_scope: the (path, type) of the module that was running, for each node's name.
        proxy_type: the class of the proxies that `proxy` makes.
    """

    graph: Graph
    record_stack_traces: bool = False
    _record_forward_stack_traces_only: bool = False
    check_mutable_operations: bool = False
    trace_asserts: bool = False
    records_origins: bool = True
    proxy_buffer_attributes: bool = False
    traced_func_name: str = "forward"
    scope: Scope
    module_stack: OrderedDict[str, tuple[str, Any]]
    node_name_to_scope: dict[str, tuple[str, Any]]
    num_calls: dict[str, int] = {}
    proxy_type: type[torch.fx.Proxy]

    def create_node(
        self,
        kind: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        name: str | None = None,
        type_expr: Any | None = None,
    ) -> Node:
        """Append a node to the graph. Override to check or change what is recorded."""
        if kind == "call_function" and self.check_mutable_operations:
            check_for_mutable_operation(target, args, kwargs)
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr)
        scope = self.scope
        path = scope.module_path
        self.node_name_to_scope[node.name] = (path, scope.module_type)
        meta = node.meta
        if fx_traceback.has_preserved_node_meta():
            inherit(node)
        elif self.module_stack:
            meta["nn_module_stack"] = self.module_stack.copy()
        if self.records_origins and "origin" not in meta:
            ends = kind == "placeholder" or kind == "output"
            if ends and self.graph._co_fields:
                origin = origin_of_code(self.graph._co_fields)
            else:
                origin = origin_here(path, self.num_calls.get(path, 1) - 1)
            if origin is not None:
                meta["origin"] = origin
        if self.record_stack_traces and not node.stack_trace:
            node.stack_trace = self._stack_trace()
        return node

    def _stack_trace(self) -> str | None:
        frames = CapturedTraceback.extract().summary()
        frames = self._filter_traceback_frames(frames)
        return "".join(frames.format()).strip() or None

    def _filter_traceback_frames(
        self, user_stack_summary: traceback.StackSummary
    ) -> traceback.StackSummary:
        """Returns the frames for a stack trace: by default those of the program."""
        frames = [
            frame
            for frame in user_stack_summary
            if not is_engine(frame.filename)
            and (not self._record_forward_stack_traces_only or frame.name == "forward")
        ]
        first = next((i for i, frame in enumerate(frames) if frame.name == "forward"), len(frames))
        return traceback.StackSummary.from_list(frames[first:])

    def proxy(self, node: Node) -> Any:
        """Returns the proxy for the value of a node. Override to use your own class."""
        return self.proxy_type(node, self)

    def create_proxy(
        self,
        kind: str,
        target: Target,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any | None = None,
        proxy_factory_fn: Callable[[Node], Any] | None = None,
    ) -> Any:
        """Append a node whose arguments may contain proxies, and return the proxy of its value.

        Args:
            proxy_factory_fn: creates the proxy instead of `proxy`.
        """
        node = self.create_node(
            kind,
            target,
            self.create_arg(args),
            self.create_arg(kwargs),
            name,
            type_expr,
        )
        return proxy_factory_fn(node) if proxy_factory_fn else self.proxy(node)

    def create_arg(self, a: Any) -> Argument:
        """Returns `a` in the form in which a node holds it: proxies become nodes, including those
        in containers.

        Raises:
            NotImplementedError: `a` is of a type that a graph cannot hold.
        """
        return lower(self, a)

    def to_bool(self, obj: object) -> bool:
        """Decides `if proxy:`. A tracer that knows more may return an answer."""
        raise SymbolicTraceError(
            "symbolically traced variables cannot be used as inputs to control flow"
        )

    def iter(self, obj: object) -> Iterator[Any]:
        """Decides `for part in proxy:`. A tracer that knows the length may return an iterator."""
        raise SymbolicTraceError(
            "Proxy object cannot be iterated: its length is not known while tracing. It is "
            "iterated when it is used in a loop, or as a *args or **kwargs function argument."
        )

    def leaf_returned(self, node: Node) -> None:
        """Handles the call of a leaf function, which is a node now."""

    def keys(self, obj: object) -> Any:
        """Decides `proxy.keys()`, and so `f(**proxy)`; by default, the call is recorded."""
        return self.create_proxy("call_method", "keys", (obj,), {})


class GraphAppendingTracer(TracerBase):
    """Appends to an existing graph, for proxies that were created from a bare node.

    Its nodes belong to no line of the program; a transform says which node they replace.
    """

    records_origins = False

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.scope: Scope = Scope("", None)
        self.module_stack: OrderedDict[str, tuple[str, Any]] = OrderedDict()
        self.node_name_to_scope: dict[str, tuple[str, Any]] = {}
