"""A trace's assumptions about inputs, modules and PyTorch's settings, which its graph checks."""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch.fx.graph import Graph
from torch.fx.node import Node

from calque.tracing.core.origins import origin_of_code
from calque.tracing.graph import checks
from calque.upstream import torch_c

CHANGING = frozenset(("dtype", "device", "stride", "requires_grad"))
"""The properties of parameters and other constants that a user may change after the trace."""


class Assumptions:
    """What a program read while it was traced.

    Attributes:
        inputs: for each input tensor, its name and its properties, by the keys of `LOOKS`.
        kinds: the class of each, by name.
        may_be_left_out: the names of those whose parameter has a default that is not a tensor, so
            the program may check which of the two it got.
        asks_identity, asks_class: whether the program may compare tensors with `is`, or check their
            classes.
        containers: the lists, dictionaries and objects among the inputs, by name.
        changes_containers: whether the program changes one of them.
        last_input: the last node that belongs to the inputs.
        settings: the settings of PyTorch that were read, with arguments and results.
        modes: the training mode of each module that reads it, by path.
    """

    def __init__(self) -> None:
        self.inputs: list[tuple[Node, str, dict[str, Any]]] = []
        self.kinds: dict[str, str] = {}
        self.may_be_left_out: set[str] = set()
        self.asks_identity: bool = False
        self.asks_class: bool = False
        self.containers: list[tuple[Node, str]] = []
        self.changes_containers: bool = False
        self.last_input: Node | None = None
        self.settings: dict[tuple[str, tuple[Any, ...]], Any] = {}
        self.modes: dict[str, bool] = {}
        self._members: dict[str, dict[str, Any]] = {}
        self._computed: dict[Node, dict[str, Any]] = {}
        self._asked: set[str] = set()
        self._from_inputs: set[Node] = set()
        self._from_members: set[Node] = set()

    def add_input(self, node: Node, name: str, kind: str) -> None:
        """Add a tensor among the inputs whose abstract value and class are known."""
        self.kinds[name] = kind
        looks = {aspect: look(node.meta["val"]) for aspect, look in checks.LOOKS.items()}
        self.inputs.append((node, name, looks))

    def follow(self, node: Node) -> None:
        """Record whether a new node depends on the inputs, and on parameters or constants."""
        sources = node.all_input_nodes
        if node.op == "placeholder" or not self._from_inputs.isdisjoint(sources):
            self._from_inputs.add(node)
        if node.op in ("get_attr", "call_module") or not self._from_members.isdisjoint(sources):
            self._from_members.add(node)

    def ask(self, node: Node, *aspects: str) -> None:
        """Note that the program used a known property of a node's value."""
        value = node.meta.get("val")
        if node.op == "get_attr":
            self.ask_member(node, value, *aspects)
            return
        computed = node.op != "placeholder"
        if "is_leaf" in aspects and computed and node.target is not torch.nn.Parameter:
            aspects += ("requires_grad",)  # what is computed without a gradient is a leaf
        if node in self._from_inputs:
            self._asked.update(aspects)
        if computed and isinstance(value, torch.Tensor):
            self._ask_where_computed(node, value, aspects)

    def ask_member(self, node: Node, value: Any, *aspects: str) -> None:
        """Note that the program used a known property of a parameter or another constant."""
        looks = _looks(value, CHANGING.intersection(aspects))
        if looks:
            self._members.setdefault(str(node.target), {}).update(looks)

    def _ask_where_computed(
        self, node: Node, value: torch.Tensor, aspects: tuple[str, ...]
    ) -> None:
        """Insert a check of a computed tensor where the program asks, of what may change with
        parameters: its dtype, for example, and whether it requires grad, which depends on all that
        the tensor was computed from, and on what was written into it.
        """
        changing = CHANGING if node in self._from_members else frozenset(("requires_grad",))
        looks = _looks(value, changing.intersection(aspects))
        with torch_c.DisableTorchFunction():
            version = value._version
        known = self._computed.setdefault(node, {})
        if all(known.get(aspect) == (look, version) for aspect, look in looks.items()):
            return
        known |= {aspect: (look, version) for aspect, look in looks.items()}
        last = next(iter(reversed(node.graph.nodes)))
        if last.target is checks.expect_tensor and last.args[0] is node:
            last.args = (node, node.name, {**cast(dict[str, Any], last.args[2]), **looks})
        else:
            node.graph.call_function(checks.expect_tensor, (node, node.name, looks))

    def update(self, other: "Assumptions") -> None:
        """Add the assumptions of another run of the program."""
        self._asked |= other._asked
        for name, looks in other._members.items():
            self._members.setdefault(name, {}).update(looks)
        self.settings.update(other.settings)
        self.modes.update(other.modes)
        self.asks_identity |= other.asks_identity
        self.asks_class |= other.asks_class
        self.changes_containers |= other.changes_containers

    def move(self, nodes: dict[Node, Node]) -> None:
        """Replace the inputs' nodes."""
        self.inputs = [(nodes[node], name, looks) for node, name, looks in self.inputs]
        self.containers = [(nodes[node], name) for node, name in self.containers]
        self.last_input = None if self.last_input is None else nodes.get(self.last_input)

    def insert_checks(self, graph: Graph) -> None:
        """Insert checks of all assumptions into a graph, after the inputs."""
        last = self.last_input
        with graph.inserting_before(next(iter(graph.nodes)) if last is None else last.next):
            for node, name, looks in self.inputs if self._asked else ():
                asked = {aspect: look for aspect, look in looks.items() if aspect in self._asked}
                graph.call_function(checks.expect_tensor, (node, name, asked))
            self._insert_checks_of_objects(graph)
            for name, looks in self._members.items():
                member = graph.create_node("get_attr", name)
                graph.call_function(checks.expect_tensor, (member, name, looks))
            for (name, args), answer in self.settings.items():
                graph.call_function(checks.expect_setting, (name, args, answer))
            for path, training in self.modes.items():
                mode = graph.create_node("get_attr", f"{path}.training" if path else "training")
                graph.call_function(checks.expect_mode, (mode, training, path))

    def _insert_checks_of_objects(self, graph: Graph) -> None:
        place = str(origin_of_code(graph._co_fields))
        for node, name, _ in self.inputs:
            if self.asks_class or name in self.may_be_left_out:
                kind = self.kinds[name] if self.asks_class else None
                graph.call_function(checks.expect_given, (node, name, kind, place))
        if self.asks_identity and len(self.inputs) > 1:
            names = ", ".join(name for _, name, _ in self.inputs)
            graph.call_function(checks.expect_distinct, (names, *(n for n, *_ in self.inputs)))
        if self.changes_containers and len(self.containers) > 1:
            names = ", ".join(name for _, name in self.containers)
            graph.call_function(checks.expect_separate, (names, *(n for n, _ in self.containers)))


def _looks(value: torch.Tensor, aspects: Iterable[str]) -> dict[str, Any]:
    """Returns properties of a tensor; that they are read is not seen by the trace."""
    with torch_c.DisableTorchFunction():
        return {aspect: checks.LOOKS[aspect](value) for aspect in sorted(aspects)}
