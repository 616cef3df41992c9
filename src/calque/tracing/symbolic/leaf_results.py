"""The results of leaf functions, of which a trace knows nothing.

`y is None` and `isinstance(y, int)` answer for a proxy as for a value that is neither. Where the
program may compare a result so, the graph checks that the answer is right.
"""

from typing import Any

from torch.fx.graph import Graph
from torch.fx.node import Node

from calque.tracing.core.bytecode import is_discarded, may_test_none
from calque.tracing.core.origins import origin_here, program_frame
from calque.tracing.graph.checks import class_name, expect_leaf

_NONE = (class_name(None),)
_IMPLICIT = "is_implicit"
"""Marks the check of a value that the program may compare with None without telling."""


class LeafResults:
    """The results of leaf functions, in one run of a program.

    Args:
        tracer: whose graph gets the checks.
    """

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._nodes: set[Node] = set()

    def add(self, node: Node) -> None:
        """Add the result of a leaf function."""
        self._nodes.add(node)
        frame = program_frame(2)
        if frame is not None and not is_discarded(frame):
            self.check(node, _NONE, _IMPLICIT)

    def add_part(self, node: Node, part: int = 0) -> None:
        """Add a part of a result; it is checked if the line or its variable is compared."""
        if not any(source in self._nodes for source in node.all_input_nodes):
            return
        self._nodes.add(node)
        frame = program_frame(2)
        if frame is not None and may_test_none(frame, part):
            self.check(node, _NONE, _IMPLICIT)

    def add_gradient(self, node: Node) -> None:
        """Add a gradient of `torch.autograd.grad(..., allow_unused=True)`, which may be None."""
        self._nodes.add(node)
        self.check(node, _NONE, _IMPLICIT)

    def answer(self, node: Node, kinds: Any) -> None:
        """Check the answer that a value is of none of these classes, if it is such a result."""
        if node in self._nodes:
            each = kinds if isinstance(kinds, tuple) else getattr(kinds, "__args__", (kinds,))
            self.check(node, tuple(class_name(None, kind) for kind in each))

    def check(self, node: Node, kinds: tuple[str, ...], mark: str | None = None) -> None:
        """Add the check that a result is of none of these classes.

        Args:
            mark: a key that its node's metadata gets.
        """
        origin = origin_here(self._tracer.scope.module_path, 0)
        what = f"{origin}: the result of {node.name}"
        made = self._tracer.create_node("call_function", expect_leaf, (node, kinds, what), {})
        if mark is not None:
            made.meta[mark] = True


def erase_checks(graph: Graph) -> None:
    """Erase the checks that results are not None, for a program that never compares with it."""
    for node in graph.find_nodes(op="call_function", target=expect_leaf):
        if _IMPLICIT in node.meta:
            graph.erase_node(node)
