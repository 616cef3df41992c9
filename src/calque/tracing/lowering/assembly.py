"""Assembles the lowered graph from the result of `make_fx`, and adds what that lacks.

`make_fx` returns a flat graph of operators whose inputs are all tensors, including members of the
module. Here the inputs get their containers and checks back, the members their names, the result
its structure, and each node its source location.
"""

import dataclasses
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node, base_types

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph import checks
from calque.tracing.graph.branching import cond
from calque.tracing.graph.member_source import in_order_of
from calque.tracing.graph.owner import GraphOwner
from calque.tracing.graph.purity import TracedGraph
from calque.tracing.graph.templates import is_plain, rebuilt, take_apart
from calque.tracing.graph.training_modes import reads_training
from calque.tracing.lowering.bindings import Inputs, is_record, resolve
from calque.tracing.lowering.checked_properties import (
    asks_of_gradients,
    copies_by_strides,
    properties_of_inputs,
)
from calque.tracing.lowering.functional_forms import FILLED_AT_RANDOM
from calque.tracing.lowering.own_leaves import MARK, is_mark
from calque.tracing.lowering.reads import GuardedRead
from calque.tracing.lowering.unseen_writes import loses_gradients
from calque.tracing.lowering.writes import (
    COPY,
    GEOMETRY,
    is_unseen,
    refuse_writes_in_branches,
    refuse_writes_to_parameters,
)
from calque.upstream import torch_c
from calque.upstream.torch_internals import FakeTensor, OpOverload

_PLACE = ("origin", "nn_module_stack", "stack_trace")
_CONTAINERS = (tuple, list, dict)


class Assembly:
    """Builds the graph module that `lower` returns.

    Args:
        old: the graph that was lowered.
        found: what `make_fx` found: first the members, then the tensors of the inputs.
        names: the names of the members.
        inputs: the example call.
        source: maps each node of `found` to the node of `old` that it is part of.
        run: the run of `old`. The tensors in its `result`, in `assigned`, in the attributes that
            its `layers` assign, and in its `reads` are the results of `found`, in this order.
        functional: whether nothing writes to a view, so that a copy may replace it.
    """

    def __init__(
        self,
        old: GraphModule,
        found: GraphModule,
        names: list[str],
        inputs: Inputs,
        source: Callable[[Node], Node | None],
        run: Any,
        functional: bool,
    ) -> None:
        self._old, self._found, self._inputs = old, found, inputs
        self._source, self._functional = source, functional
        self._graph = TracedGraph(tracer_cls=old.graph._tracer_cls)
        self._graph._codegen = old.graph._codegen
        (self._end,) = old.graph.find_nodes(op="output")
        self._members: dict[str, Any] = {}
        self._nodes: dict[Node, Node] = {}
        leaves: list[Node] = found.graph.find_nodes(op="placeholder")
        self._by_strides = {leaves[i] for i in run.writers} if copies_by_strides(old.graph) else ()
        self._marked = {leaves[i] for i in run.own_leaves.expected}
        self._add_inputs(leaves[len(names) :])
        self._add_modes()
        for name, leaf in zip(names, leaves):
            if leaf.users:
                self._nodes[leaf] = self._member(name, resolve(old, name), leaf)
        if functional:
            copies = found.graph.find_nodes(op="call_function", target=COPY)
            written = {leaves[index] for index in run.writers} | {copy.args[0] for copy in copies}
            self._expect_apart(written, leaves[: len(names)], leaves[len(names) :])
        else:
            refuse_writes_in_branches(found, source)
            members = [resolve(old, name) for name in names] if run.is_differentiable else []
            graded = [leaf for leaf, each in zip(leaves, members) if each.requires_grad]
            refuse_writes_to_parameters(found, graded, source)
        guards = self._guards(run.reads)
        for node in found.graph.nodes:
            self._add(node)
            for insert in guards.get(node, ()):
                insert()
        self._add_output(run)
        self._graph.eliminate_dead_code()

    def module(self) -> GraphModule:
        """Returns the graph with the members that it names."""
        module = GraphModule(self._members, self._graph, self._old._get_name())
        module.training = self._old.training
        return in_order_of(module, self._old)

    # Inputs

    def _add_inputs(self, leaves: list[Node]) -> None:
        rest = iter(leaves)
        asked = properties_of_inputs(self._old.graph)
        self._expects_gradients = {True, False} if asks_of_gradients(self._old.graph) else set()
        if torch_c.is_grad_enabled() and loses_gradients(self._old.graph):
            self._expects_gradients.add(False)
        pairs = list(zip(self._inputs.placeholders, self._inputs.values, strict=True))
        # The placeholders must come before the checks.
        made = [self._graph.node_copy(placeholder, lambda n: n) for placeholder, _ in pairs]
        twins = dict(zip((placeholder for placeholder, _ in pairs), made))
        for check in self._old.graph.find_nodes(op="call_function", target=checks.expect_given):
            if check.args[0] in twins:
                self._graph.node_copy(check, twins.__getitem__)
        for node, (placeholder, value) in zip(made, pairs):
            node.meta["val"] = value
            if value is ...:
                node.args = (...,)  # the default is an object, which operators do not take
            self._take(node, value, str(placeholder.target), rest, asked)
        for check in self._old.graph.find_nodes(op="call_function", target=checks.expect_distinct):
            self._graph.call_function(check.target, (check.args[0], *self._nodes.values()))

    def _take(
        self,
        node: Node,
        value: Any,
        name: str,
        rest: Iterator[Node],
        asked: dict[str, dict[str, Any]],
    ) -> None:
        """Check an input, and find the tensors in it."""
        if isinstance(value, torch.Tensor):
            leaf = next(rest)
            self._nodes[leaf] = node
            node.meta["val"] = value
            looks = {"shape": tuple(value.shape), "dtype": value.dtype, **asked.get(name, {})}
            if leaf in self._marked:
                looks["requires_grad"] = True
            if leaf in self._by_strides:
                looks["stride"] = tuple(value.stride())
            if value.requires_grad in self._expects_gradients and "requires_grad" not in looks:
                looks[checks.GRADIENT] = value.requires_grad
            self._check(checks.expect_tensor, node, name, looks)
        elif isinstance(value, _CONTAINERS):
            node.meta["val"] = value
            looks = checks.class_name(value), checks.parts_of(value)
            self._check(checks.expect_container, node, *looks, name)
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, part in items:
                child = self._graph.call_function(operator.getitem, (node, key))
                child.meta |= {k: v for k, v in node.meta.items() if k in _PLACE}
                self._take(child, part, f"{name}[{key!r}]", rest, asked)
        elif is_record(value):
            self._check(checks.expect_container, node, checks.class_name(value), None, name)
            for field in dataclasses.fields(value):
                child = self._graph.call_function(getattr, (node, field.name))
                child.meta |= {k: v for k, v in node.meta.items() if k in _PLACE}
                self._take(child, getattr(value, field.name), f"{name}.{field.name}", rest, asked)
        else:
            self._check(checks.expect_value, node, value, name)

    def _expect_apart(self, written: set[Node], members: list[Node], leaves: list[Node]) -> None:
        """Check that tensors that are written to are not read under another name, since writes come
        last.
        """
        members = [each for each in members if each in self._nodes]
        for place, leaf in enumerate(leaves):
            others = [*members, *leaves[:place], *leaves[place + 1 :]]
            if leaf not in written:  # two inputs are compared once, when the written one is reached
                others = [each for each in members if each in written]
            if others:
                nodes = (self._nodes[each] for each in others)
                self._check(checks.expect_apart, self._nodes[leaf], *nodes)

    def _check(self, target: Callable[..., Any], node: Node, *args: Any) -> None:
        check = self._graph.call_function(target, (node, *args))
        check.meta |= {k: v for k, v in node.meta.items() if k in _PLACE}

    def _add_modes(self) -> None:
        for name, training in self._modes().items():
            mode = self._member(f"{name}.training" if name else "training", training)
            self._check(checks.expect_mode, mode, training, name)
        for node in self._old.graph.find_nodes(op="call_function", target=checks.expect_setting):
            self._graph.node_copy(node)
        asked = self._old.graph.find_nodes(op="call_function", target=torch_c.is_grad_enabled)
        if any(user.target is cond for node in asked for user in node.users):
            setting = ("is_grad_enabled", (), torch_c.is_grad_enabled())
            self._graph.call_function(checks.expect_setting, setting)

    def _modes(self) -> dict[str, bool]:
        """Returns the modes that the operators depend on, by module path, including those that
        `old` checks.
        """
        modules = self._old.named_modules(remove_duplicate=False)
        found = {name: m.training for name, m in modules if reads_training(type(m))}
        for check in self._old.graph.find_nodes(op="call_function", target=checks.expect_mode):
            found[str(check.args[2])] = bool(check.args[1])
        return found

    # Operators

    def _member(self, name: str, value: object, leaf: Node | None = None) -> Node:
        self._members[name] = value
        node = self._graph.create_node("get_attr", name)
        if leaf is not None:
            node.meta["val"] = leaf.meta.get("val")
        user = next(iter(leaf.users)) if leaf is not None else None
        self._place(node, self._source(user) if user is not None else self._end)
        return node

    def _add(self, node: Node) -> None:
        if node.op in ("placeholder", "output"):
            return
        if node.op == "get_attr":
            value = resolve(self._found, str(node.target))
            if _has_lost(value):
                raise _lost(self._source(node))
            copied = self._member(self._fresh(str(node.target)), value)
        else:
            copied = self._graph.node_copy(node, self._nodes.__getitem__)
            if is_unseen(node):
                self._hide(node, copied)
            if node.target in FILLED_AT_RANDOM and torch_c.is_grad_enabled():
                self._detach_filled(copied)
            if self._functional and node.target is torch.ops.aten.view.default:
                # FakeTensors have wrong strides for the results of some kernels.
                copied.target = torch.ops.aten.reshape.default
            source: Any = node.args[0] if node.target is GEOMETRY else None
            if self._functional and source is not None and len(source.users) == 1:
                copied.target = torch.ops.aten.as_strided.default
        self._place(copied, self._source(node))
        if is_mark(node, self._source(node)):
            source: Any = node.args[0]
            if source.op == "placeholder":  # the program marks its argument
                self._graph.erase_node(copied)
                copied = self._nodes[source]
            copied = self._graph.call_function(MARK, (copied,))
            copied.meta["val"] = node.meta.get("val")
            self._place(copied, self._source(node))
        self._nodes[node] = copied

    def _detach_filled(self, node: Node) -> None:
        """Detach the tensor that a node fills, for which PyTorch has no gradient otherwise."""
        filled: Any = node.args[0]
        if "empty" not in str(filled.target):
            with self._graph.inserting_before(node):
                detached = self._graph.call_function(torch.ops.aten.detach.default, (filled,))
            detached.meta |= {k: v for k, v in filled.meta.items() if k in (*_PLACE, "val")}
            node.replace_input_with(filled, detached)

    def _hide(self, copy: Node, copied: Node) -> None:
        """Keep autograd from counting a write to a tensor that it may have saved
        for the backward pass.
        """
        old: Any = copy.args[0]
        leaf: Any = copied.args[0]
        kept = (torch.ops.aten.clone.default, COPY)
        others = [user for user in old.users if user.target not in kept]
        if any(isinstance(user.target, OpOverload) for user in others):
            with self._graph.inserting_before(copied):
                data = self._graph.call_function(torch.ops.aten.data.default, (leaf,))
            data.meta["val"] = leaf.meta.get("val")
            self._place(data, self._source(copy))
            copied.args = (data, *copied.args[1:])

    def _fresh(self, name: str) -> str:
        while name in self._members or hasattr(self._old, name):
            name += "_"
        return name

    def _place(self, node: Node, source: Node | None) -> None:
        for key in _PLACE if source is not None else ():
            if key in source.meta:  # pyright: ignore[reportOptionalMemberAccess]
                node.meta[key] = source.meta[key]  # pyright: ignore[reportOptionalMemberAccess]

    def _guards(self, reads: list[GuardedRead]) -> dict[Node, list[Callable[[], None]]]:
        """Returns the functions that add guards of values, by the node that they follow."""
        (output,) = self._found.graph.find_nodes(op="output")
        count = sum(len(read.tensors) for read in reads)
        copies: Any = iter(output.args[0][len(output.args[0]) - count :])
        order = {node: index for index, node in enumerate(self._found.graph.nodes)}
        guards: dict[Node, list[Callable[[], None]]] = {}
        for read in reads:
            nodes = {id(tensor): next(copies) for tensor in read.tensors}

            def insert(read: GuardedRead = read, nodes: dict[int, Node] = nodes) -> None:
                read.insert(self._graph, lambda key: self._nodes[nodes[key]], self._kept)

            last = max(nodes.values(), key=order.__getitem__, default=output)
            guards.setdefault(last, []).append(insert)
        return guards

    def _kept(self, node: Node) -> Node:
        """Returns a member of the graph that is not a tensor."""
        return self._member(self._fresh(str(node.target)), resolve(self._old, str(node.target)))

    # The result

    def _add_output(self, run: Any) -> None:
        (found,) = self._found.graph.find_nodes(op="output")
        leaves = found.graph.find_nodes(op="placeholder")
        places = iter(run.given_back)
        rest = iter(found.args[0])

        def tensor() -> Node:
            """Returns the next tensor of the result, which may be an input that was written to."""
            node, place = self._nodes[next(rest)], next(places)
            return node if place is None else self._nodes.get(leaves[place], node)

        structure = self._structured(run.result, tensor)
        for node, value in run.assigned.items():
            owner: Any = node.args[0]
            module = resolve(self._old, str(owner.target))
            held = module if isinstance(module, GraphOwner) else GraphOwner(module)
            self._assign(held, node.args[1], self._structured(value, tensor), node)
        for each in run.layers.assigned:
            made = self._structured(each.value, tensor)
            self._assign(GraphOwner(each.module), each.name, made, each.caller)
        output = self._graph.output(structure)
        self._place(output, self._end)

    def _assign(self, owner: GraphOwner, name: Any, value: Any, source: Node | None) -> None:
        kept = self._member(self._fresh("_owner"), owner)
        self._place(self._graph.call_function(checks.assign, (kept, name, value)), source)

    def _structured(self, value: Any, tensor: Callable[[], Node]) -> Any:
        if isinstance(value, torch.Tensor):
            return tensor()
        if isinstance(value, base_types) or value is None:
            return value
        if is_plain(value):
            parts = value.values() if isinstance(value, dict) else value
            nodes = [self._structured(part, tensor) for part in parts]
            if isinstance(value, dict):
                return dict(zip(value, nodes))
            return tuple(nodes) if isinstance(value, tuple) else nodes
        template, parts = take_apart(value)
        nodes = [tensor() for _ in parts]
        constant = self._member(self._fresh("_template"), template)
        return self._graph.call_function(rebuilt, (constant, *nodes))


def _has_lost(value: Any) -> bool:
    """Returns True for a tensor without data, also in a branch or a loop."""
    if not isinstance(value, GraphModule):
        return isinstance(value, FakeTensor)
    graphs = [inner for inner in value.modules() if isinstance(inner, GraphModule)]
    return any(
        isinstance(resolve(inner, str(node.target)), FakeTensor)
        for inner in graphs
        for node in inner.graph.find_nodes(op="get_attr")
    )


def _lost(source: Node | None) -> SymbolicTraceError:
    origin = source.meta.get("origin") if source is not None else None
    return SymbolicTraceError(
        f"{origin or 'somewhere'}: a tensor is created without a visible operator.\n"
        "Use the graph as it is, without lowering."
    )


def tensors_in(result: Any) -> list[torch.Tensor]:
    """Returns the tensors of a result, in the order in which `Assembly` needs them."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, base_types) or result is None:
        return []
    if is_plain(result):
        parts = result.values() if isinstance(result, dict) else result
        return [tensor for part in parts for tensor in tensors_in(part)]
    return take_apart(result)[1]
