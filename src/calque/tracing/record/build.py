"""Builds the graph of a recording: its events, at the requested depth, as nodes."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Argument, Node

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.core.origins import origin_of_code
from calque.tracing.graph import checks
from calque.tracing.graph.member_source import in_order_of, source_of_members
from calque.tracing.graph.owner import GraphOwner
from calque.tracing.graph.templates import rebuilt
from calque.tracing.graph.training_modes import reads_training
from calque.tracing.graph.value_guards import (
    Answer,
    expect_answer,
    expect_one,
    number_of_parts,
)
from calque.tracing.lowering.own_leaves import HAD_GRADIENT, is_marking
from calque.tracing.proxies.proxy import record_call
from calque.tracing.record.events import Begin, ModuleCall, ModuleEnd, RecordedCall
from calque.tracing.record.inputs_outputs import (
    CreatedObject,
    GivenContainer,
    Rebuilt,
    mapped,
    paired,
)
from calque.tracing.record.keeping import Keeper, edited
from calque.tracing.record.leaf_modules import collapsible, refuse_lost_hooks, why_opened
from calque.tracing.record.numbers import NUMBER
from calque.tracing.record.value_nodes import ValueNodes
from calque.tracing.record.values import RunValue, values_in
from calque.tracing.symbolic.restoring import Restoring
from calque.tracing.symbolic.root_inputs import make_placeholder, order_inputs, unheld
from calque.upstream.torch_internals import make_graph_module


class Builder(ValueNodes):
    """Makes the graph of a recording.

    Args:
        tape: the recording (`FinishedRun`).
        is_leaf: returns True if a call of a module should be one node.
        keeper: edits the results of some calls.
        whole: whether the call of the program itself may be one node.

    Attributes:
        modules: the calls of modules that are one node, by the node's name.
        opened: the calls of modules that should have been one node, and why they are not.
    """

    def __init__(
        self,
        tape: Any,
        is_leaf: Callable[[ModuleCall], bool],
        keeper: Keeper,
        whole: bool = False,
    ) -> None:
        super().__init__()
        self._whole = whole
        self.modules: dict[str, ModuleCall] = {}
        self.opened: dict[ModuleCall, str] = {}
        self._keeper = keeper
        self._taken: list[tuple[Node, str, RunValue]] = []
        self._known_at: dict[ModuleCall, int] = {}
        self._tape, self._is_leaf = tape, is_leaf
        self._made: dict[str, Any] = {}
        self.traced_func_name: str = tape.method
        self.assumed.update(tape.assumed)
        self.examples: Any = ((), {})
        self.given: dict[str, Any] = {}
        self.deferred: list[tuple[Any, tuple[Any, ...]]] = []
        self.containers: list[Any] = []
        self.nodes_of: dict[int, Any] = {}

    def build(self) -> GraphModule:
        """Returns the graph module, which shares the parameters of the program."""
        tape = self._tape
        is_module = isinstance(tape.root, torch.nn.Module)
        self._enter(tape.root)
        self.graph._tracer_cls = Restoring  # the tracer that unpickling uses
        self._origin = origin_of_code(self.graph._co_fields)
        self._add_inputs()
        self._add_events()
        self._add_guards()
        self._origin = origin_of_code(self.graph._co_fields)
        self._enter_module(None)
        self._add_assignments()
        self.create_node("output", "output", (self._result(tape.result),), {})
        for node in reversed(self._parts):
            if not node.users:
                self.graph.erase_node(node)
        self._returned_arguments.insert_checks(self.graph, tape.asks_identity)
        self.assumed.insert_checks(self.graph)
        for node in self.graph.nodes:
            if self._origin is not None:
                node.meta.setdefault("origin", self._origin)
        name = type(tape.root).__name__ if is_module else tape.name
        self.submodule_paths: dict[torch.nn.Module, str] | None = None
        members = source_of_members(self)
        return in_order_of(make_graph_module(members, self.graph, name), members)

    # Inputs and output

    def _add_inputs(self) -> None:
        tape = self._tape
        abstract = mapped(tape.arguments, self._abstract)
        self.given = abstract
        for name in tape.names:
            made = make_placeholder(self, name, tape.signature)
            bare = name.lstrip("*")
            self._made[bare] = made
            if bare in tape.arguments:
                self._placeholders()[-1].meta.setdefault("val", abstract[bare])
                paired(tape.arguments[bare], made, functools.partial(self._take, bare))
            elif bare != name:
                self._placeholders()[-1].meta["val"] = {} if name.startswith("**") else ()
        for check, arguments in self.deferred:
            try:
                lowered = tuple(self.create_arg(a) for a in arguments)
            except NotImplementedError as error:
                raise unheld(self, *arguments) from error
            self.create_node("call_function", check, lowered, {})
        for first, second in tape.twins:
            nodes = self._env[first], self._env[second]
            names = " and ".join(node.name for node in nodes)
            self.create_node("call_function", expect_one, (*nodes, names), {})
        seconds = {second for _, second in tape.twins}
        taken = [(node, name) for node, name, value in self._taken if value not in seconds]
        if tape.asks_identity and len(taken) > 1:
            names = ", ".join(dict.fromkeys(name for _, name in taken))
            distinct = (names, *(node for node, _ in taken))
            self.create_node("call_function", checks.expect_distinct, distinct, {})
        order_inputs(self.graph, tape.code)
        self.assumed.last_input = next(iter(reversed(self.graph.nodes)), None)
        for node in self._placeholders()[:1] if tape.asked else ():
            self.assumed.ask(node, *tape.asked)

    def _add_guards(self) -> None:
        """Add checks that inputs are tensors, if they may be omitted or nothing else uses them."""
        last = self.assumed.last_input
        origin = origin_of_code(self.graph._co_fields)
        if last is None:
            return
        with self.graph.inserting_before(last.next):
            for node, name, value in self._taken:
                parameter = self._tape.signature.parameters[name]
                may_miss = parameter.default is not parameter.empty
                asks = self._tape.asks_class
                if may_miss or asks or all(user.target in checks.CHECKS for user in node.users):
                    was = self._tape.classes.get(value) if asks else None
                    self.graph.call_function(checks.expect_given, (node, name, was, str(origin)))

    def _placeholders(self) -> list[Node]:
        return self.graph.find_nodes(op="placeholder")

    def _take(self, name: str, value: Any, made: Any) -> None:
        if type(value) is RunValue:
            self._env[value] = made.node
            self._taken.append((made.node, name, value))

    def _given_container(self, place: GivenContainer) -> Node:
        return self.nodes_of[id(place.found_in(self._made))][0]

    def _result(self, result: Any) -> Argument:
        if isinstance(result, GivenContainer):
            return self._given_container(result)
        if isinstance(result, CreatedObject):
            args = tuple(self._result(part) for part in result.args)
            kwargs = {name: self._result(part) for name, part in result.kwargs.items()}
            return self.create_node("call_function", result.make, args, kwargs)
        if isinstance(result, Rebuilt):
            name = self.get_fresh_qualname("_template")
            self.keep(name, result.template)
            constant = self.create_node("get_attr", name, (), {})
            parts = tuple(self.create_arg(part) for part in result.parts)
            return self.create_node("call_function", rebuilt, (constant, *parts), {})
        if type(result) in (tuple, list):
            return type(result)(self._result(part) for part in result)
        if type(result) is dict:
            return {key: self._result(part) for key, part in result.items()}
        return self.create_arg(result)

    def _add_assignments(self) -> None:
        for module, name, value in self._tape.assignments:
            if type(module) is RunValue:  # `y.note = ...`, on a tensor that is returned
                attribute = self.create_arg(module), name, self._result(value)
                self.create_node("call_function", setattr, attribute, {})
                continue
            if isinstance(module, GivenContainer):
                container = self._given_container(module)
                change = setattr if module.is_object else operator.setitem
                made = container, name, self._result(value)
                self.create_node("call_function", change, made, {})
                continue
            if module is self.root or isinstance(module, dict):
                owner: Any = self.create_arg(GraphOwner(module))
            else:
                owner = self.create_node("get_attr", self.path_of_module(module), (), {})
            target = (owner, name, self._result(value))
            self.create_node("call_function", checks.assign, target, {})

    # Events

    def _add_events(self) -> None:
        leaves = collapsible(self._tape, self._is_leaf, self._keeper, self._whole)
        refuse_lost_hooks(self._tape, leaves)
        self.opened = why_opened(self._tape, leaves, self._is_leaf, self._whole)
        opened: dict[torch.nn.Module, ModuleCall] = {}
        for event in self._tape.events:
            module = event.module if isinstance(event, RecordedCall) else event.call.parent
            if module is not None and module in leaves.within:
                continue
            if isinstance(event, Begin):
                self._known_at[event.call] = len(self._env)
                if event.call not in leaves.calls:
                    opened.setdefault(event.call.module, event.call)
            elif isinstance(event, ModuleEnd):
                if event.call in leaves.calls:
                    self._add_module(event.call)
                self._edit(event.call.path, event.call, self._known_at[event.call])
            else:
                known = len(self._env)
                with self._grad_mode(event.grad):
                    self._add_call(event)
                if self._keeper.sees_functions and event.what != NUMBER:
                    path = event.module.path if event.module is not None else ""
                    self._edit(f"{path}:{event.name}", event, known)
        for module, call in opened.items():
            if reads_training(type(module)) and not call.is_changed and self._is_named(call):
                self.assumed.modes[call.path] = call.training

        for tensor, aspects, module in self._tape.asked_of_members:
            if module is None or module not in leaves.within:
                member: Any = self.create_arg(tensor)
                self.assumed.ask_member(member, tensor, *aspects)
                self.graph.erase_node(member)

    def _is_named(self, call: ModuleCall) -> bool:
        return call.module is self.root or bool(call.path)

    def _add_module(self, call: ModuleCall) -> None:
        self._enter_module(call)
        self._origin = call.origin()
        if call.module is self.root:
            path = self.get_fresh_qualname("_program")
            self.keep(path, self.root)
        else:
            path = self.path_of_module(call.module)
        with self._grad_mode(call.grad):
            node = self.create_node(
                "call_module", path, self.create_arg(call.args), self.create_arg(call.kwargs)
            )
        self.modules[node.name] = call
        self._define(call.result, node)

    def _add_call(self, call: RecordedCall) -> None:
        self._enter_module(call.module)
        self._origin = call.origin()
        target: Any = _OPERATORS.get(call.name, call.target)
        if isinstance(target, torch.nn.Module):
            path = self.path_of_module(target)
            node = self.create_proxy("call_module", path, call.args, call.kwargs).node
        elif target in _PLAIN or not hasattr(target, "__name__"):
            node = self.create_proxy("call_function", target, call.args, call.kwargs).node
        else:
            node = record_call(self, target, call.args, call.kwargs).node
        if is_marking(target, call.args[1:], call.kwargs) and _had_gradient(call.args[0]):
            node.meta[HAD_GRADIENT] = True
        if call.reads:
            self._expect(node, call.reads[0], call.what, call)
        if call.is_counted:
            length = self.create_node("call_function", number_of_parts, (node,), {})
            self._expect(length, len(call.result), f"the number of parts of {call.name}", call)
        self._define(call.result, node)

    def _edit(self, name: str, call: RecordedCall | ModuleCall, known: int) -> None:
        """Replace the result of a call.

        Args:
            known: the number of values before the call.
        """
        edits = self._keeper.edits_of(name) if self._keeper.patterns else ()
        values = values_in(call.result) if edits else []
        if not set(values).isdisjoint([*self._env][:known]):
            raise SymbolicTraceError(
                f"{call.origin()}: {name} returns a tensor that it was passed, so a graph cannot "
                "tell which of the two is used.\nEdit the call that created it, or record the "
                "edited program: calque.record(..., edits=...)."
            )
        for edit in edits:
            constant = self.get_fresh_qualname("_edit")
            self.keep(constant, edit)
            kept = self.create_node("get_attr", constant, (), {})
            arguments = kept, self.create_arg(call.result)
            node = self.create_node("call_function", edited, arguments, {})
            self._define(call.result, node)

    def _expect(self, node: Node, answer: object, what: str, call: RecordedCall) -> None:
        name = self.get_fresh_qualname("_answer")
        self.keep(name, Answer(answer))
        expected = self.create_node("get_attr", name, (), {})
        check = (node, expected, what, str(call.origin()))
        self.create_node("call_function", expect_answer, check, {})


def _had_gradient(given: Any) -> bool:
    """Returns True if an argument of a call is a tensor that required a gradient before it."""
    looks = given.looks if type(given) is RunValue else given
    return bool(getattr(looks, "requires_grad", False))


_OPERATORS = {"__getitem__": operator.getitem, "__setitem__": operator.setitem}
_PLAIN = (getattr, setattr, len, *_OPERATORS.values())
