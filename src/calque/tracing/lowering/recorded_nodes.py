"""Which nodes `make_fx` records while a node of another graph runs."""

from collections.abc import Callable, Mapping

from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

Place = Callable[[Node], Node | None]
"""Maps a node to the node of the program that it belongs to."""


class RecordedNodes:
    """The nodes that `make_fx` has recorded so far.

    Attributes:
        source: maps each of them to the node that was running.
    """

    def __init__(self) -> None:
        self.source: dict[Node, Node] = {}
        self._seen: Node | None = None

    def claim(self, running: Node) -> None:
        """Attribute the nodes recorded since the last call to `running`."""
        last = made = _last()
        while made is not None and made is not self._seen and made.op != "root":
            self.source.setdefault(made, running)
            made = made.prev
        if last is not None:
            self._seen = last

    def forget(self, operator: object) -> None:
        """Removes an operator that raised: `make_fx` records an operator before it runs it."""
        last = _last()
        if last is not None and last is not self._seen and last.target is operator:
            last.graph.erase_node(last)

    def source_in(self, found: GraphModule, writers: Mapping[int, Node]) -> Place:
        """Returns the node that a node found by `make_fx` comes from.

        Args:
            found: the result of `make_fx`.
            writers: for each input that was written to, the node of the last write: a final copy
                to the input comes from there.
        """
        leaves = {node: i for i, node in enumerate(found.graph.find_nodes(op="placeholder"))}

        def source(node: Node) -> Node | None:
            if node in self.source:
                return self.source[node]
            target = node.args[0] if node.args else None
            return writers.get(leaves.get(target, -1)) if isinstance(target, Node) else None

        return source


def _last() -> Node | None:
    """Returns the node that was recorded last; None if nothing is being recorded."""
    mode = get_proxy_mode()
    return None if mode is None else next(iter(reversed(mode.tracer.graph.nodes)), None)
