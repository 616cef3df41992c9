"""Reads graphs of torch.fx from any tracer: calque's, Dynamo, make_fx, torch.fx itself."""

import linecache
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx.graph import Graph
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.errors.handlers import is_of_handler
from calque.errors.printable import shortened
from calque.tracing.core.origins import is_engine
from calque.view.families import family_of
from calque.view.graph import Kind, SourceLine, ViewEdge, ViewGraph, ViewNode
from calque.view.readers.fx_arguments import arguments_of, tensors_in
from calque.view.readers.fx_groups import Groups
from calque.view.readers.fx_names import label_of, member, op_of
from calque.view.served import Probe

_FIXED: dict[str, tuple[Kind, str]] = {
    "placeholder": ("input", "input"),
    "get_attr": ("constant", "parameter"),
    "output": ("output", "output"),
}
_ESCAPES = frozenset(("item", "tolist", "numpy", "__bool__", "__int__", "__float__"))


def read(module: GraphModule, *, members: Mapping[str, str] | None = None) -> ViewGraph:
    """Reads a graph module, and those that its nodes refer to (branches).

    One edge represents all uses of one node by another.

    Args:
        module: the graph.
        members: the inputs of the graph that are parameters or buffers, with their names.
    """
    found = _Read(module, members or {})
    found.graph("", module.graph)
    name = type(module).__name__ if type(module) is not GraphModule else "GraphModule"
    name = getattr(module, "_name", None) or name
    return ViewGraph(
        str(name), "a torch.fx graph", tuple(found.nodes), tuple(found.edges), found.groups.all()
    )


def read_graph(graph: Graph) -> ViewGraph:
    """Reads a graph, with or without its module."""
    return read(GraphModule(graph.owning_module or torch.nn.Module(), graph))


class _Read:
    def __init__(self, module: GraphModule, members: Mapping[str, str]) -> None:
        self.module, self.members = module, members
        self.nodes: list[ViewNode] = []
        self.edges: list[ViewEdge] = []
        self.groups = Groups()
        self._probe = Probe(module)
        self._parameters = {id(p) for p in module.parameters()}

    def graph(self, prefix: str, graph: Graph) -> None:
        for node in graph.nodes:
            self.nodes.append(self._node(prefix, node))
            inputs = node.all_input_nodes
            self.edges += (ViewEdge(prefix + n.name, prefix + node.name) for n in inputs)
            branch = member(self.module, node) if node.op == "get_attr" else None
            if isinstance(branch, GraphModule) and branch is not self.module:
                self._branch(prefix, node.name, branch)

    def _branch(self, prefix: str, name: str, branch: GraphModule) -> None:
        around, outer = self.groups.around, self.module
        self.groups.around = self.groups.add(around, name, type="branch")
        self.module = branch
        self.graph(f"{prefix}{name}/", branch.graph)
        self.groups.around, self.module = around, outer

    def _node(self, prefix: str, node: Node) -> ViewNode:
        kind, family = self._kind(node)
        op = op_of(self.module, node)
        path = self.members.get(node.name)
        return ViewNode(
            id=prefix + node.name,
            op=op if path is None else path,
            label=label_of(node, op) if path is None else path,
            kind=kind,
            group=self.groups.of(
                node, path or (label_of(node, op) if kind == "parameter" else None)
            ),
            family=family
            or family_of(op.rpartition(".")[2] if "aten." not in op else op.split(".")[1]),
            served=self._served(node, kind),
            outputs=tuple(tensors_in(_value(node))),
            arguments=(*arguments_of(node), *self._settings(node)),
            parameters=tuple(self._weights(node)),
            source=_source(node),
        )

    def _kind(self, node: Node) -> tuple[Kind, str]:
        if node.name in self.members or _is_parameter(node):
            return "parameter", "parameter"
        if node.op == "get_attr":
            value = member(self.module, node)
            is_parameter = isinstance(value, torch.nn.Parameter) or id(value) in self._parameters
            return ("parameter" if is_parameter else "constant"), "parameter"
        if node.op in _FIXED:
            return _FIXED[node.op]
        if is_check(node):
            return "check", "check"
        return ("module" if node.op == "call_module" else "call"), ""

    def _served(self, node: Node, kind: Kind) -> str:
        if not node.op.startswith("call"):
            return ""
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if kind == "check":
            return "escape" if name in ("expect_answer", "expect_one") else ""
        if node.op != "call_module" and name in _ESCAPES:
            return "escape"
        return self._probe.served(node)

    def _settings(self, node: Node) -> Iterator[tuple[str, str]]:
        """Yields a layer's settings, from its `extra_repr`."""
        called = member(self.module, node) if node.op == "call_module" else None
        try:
            settings = called.extra_repr() if isinstance(called, torch.nn.Module) else ""
        except Exception as error:  # the user's `extra_repr` may fail
            if is_of_handler(error):
                raise
            return
        if settings:
            yield "settings", shortened(str(settings))

    def _weights(self, node: Node) -> Iterator[tuple[str, Any]]:
        if node.op == "call_module":
            called: Any = member(self.module, node)
            if isinstance(called, torch.nn.Module):
                for name, tensor in (*called.named_parameters(), *called.named_buffers()):
                    yield from ((name, look) for look in tensors_in(tensor))
            return
        for source in node.all_input_nodes:
            path = self.members.get(source.name)
            if path is None and source.op == "get_attr":
                path = str(source.target)
            if path is None and _is_parameter(source):
                path = label_of(source, source.name)
            if path is not None:
                yield from ((path, look) for look in tensors_in(_value(source)))


def is_check(node: Node) -> bool:
    """Returns True if a node checks an assumption of the graph's tracer."""
    if node.op != "call_function":
        return False
    module = getattr(node.target, "__module__", "") or ""
    name = getattr(node.target, "__name__", "").partition(".")[0]
    own = module.startswith("calque.tracing") and name.startswith(("expect_", "raise_", "assert_"))
    return own or name in ("_assert", "_assert_scalar", "_assert_async", "_assert_tensor_metadata")


def _value(node: Node) -> Any:
    meta = node.meta
    for key in ("val", "example_value", "tensor_meta"):
        if meta.get(key) is not None:
            return meta[key]
    return None


def _is_parameter(node: Node) -> bool:
    return node.op == "placeholder" and isinstance(_value(node), torch.nn.Parameter)


_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')


def _source(node: Node) -> SourceLine | None:
    """Returns a node's line: the innermost line of the program, or else of PyTorch."""
    origin = node.meta.get("origin")
    if origin is not None:
        file, line, function = origin.file, origin.line, origin.function
    else:
        frames = _FRAME.findall(node.stack_trace or "")
        if not frames:
            return None
        file, line, function = ([f for f in frames if not is_engine(f[0])] or frames)[-1]
    return source_line(file, int(line), function)


def source_line(file: str, line: int, function: str) -> SourceLine:
    """Returns a line with its text, if it can be read."""
    return SourceLine(file, line, function, linecache.getline(file, line).strip()[:300])
