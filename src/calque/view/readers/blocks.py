"""Reads federated computations: each building block is a node, with an edge from each of its
parts.
"""

from itertools import count

from calque.errors.printable import shortened
from calque.federated.building_blocks import blocks as bb
from calque.federated.computation import Computation, PolymorphicComputation
from calque.view.families import family_of
from calque.view.graph import (
    Kind,
    ViewEdge,
    ViewGraph,
    ViewGroup,
    ViewNode,
)
from calque.view.readers.fx import source_line

_KINDS: dict[type, Kind] = {bb.Literal: "constant", bb.Data: "input"}
_FAMILIES: dict[type, str] = {
    bb.Reference: "input",
    bb.Literal: "parameter",
    bb.Selection: "indexing",
    bb.Struct: "shape",
    bb.Lambda: "control",
    bb.Block: "control",
    bb.Intrinsic: "federated",
    bb.Placement: "federated",
    bb.Data: "federated",
}


def read_computation(computation: Computation) -> ViewGraph:
    """Reads a federated computation's AST."""
    return read(computation.building_block, name=computation.__name__)


def read_types(computation: PolymorphicComputation) -> ViewGraph:
    """Raises an error: a polymorphic computation depends on the types of its arguments.

    Raises:
        TypeError: always.
    """
    raise TypeError(
        f"{computation.__name__} is polymorphic: its types, and so its AST, depend on the call.\n"
        f"Show {computation.__name__}.of(...), with the types of its arguments."
    )


def read(block: bb.BuildingBlock, *, name: str = "computation") -> ViewGraph:
    """Reads a block and all its parts, parts first.

    Edges go from a part to the whole; edges of kind `"binding"` go from the definition of a name in
    a `Block` to each `Reference` to it. The blocks in a function are a group.
    """
    found = _Read()
    found.block(block, "", {})
    return ViewGraph(
        name, "a federated computation", tuple(found.nodes), tuple(found.edges), tuple(found.groups)
    )


class _Read:
    def __init__(self) -> None:
        self.nodes: list[ViewNode] = []
        self.edges: list[ViewEdge] = []
        self.groups: list[ViewGroup] = []
        self._count = 0
        self._taken: set[str] = set()

    def block(
        self, block: bb.BuildingBlock, group: str, names: dict[str, str], as_: str = ""
    ) -> str:
        """Read a block; returns the id of its node."""
        self._count += 1
        id = self._unique(as_ or f"{type(block).__name__.lower()}_{self._count}")
        inner = self._function(block, group) if isinstance(block, bb.Lambda) else group
        if isinstance(block, bb.Lambda) and block.parameter is not None:
            names = {key: value for key, value in names.items() if key != block.parameter}
        parts: list[str] = []
        bound = block.locals if isinstance(block, bb.Block) else ()
        for local, value in bound:
            parts.append(self.block(value, inner, names, local))
            names = {**names, local: parts[-1]}
        parts += (self.block(part, inner, names) for part in block.children()[len(bound) :])
        self.nodes.append(_node(id, block, group))
        self.edges += (ViewEdge(part, id) for part in parts)
        if isinstance(block, bb.Reference) and block.name in names:
            self.edges.append(ViewEdge(names[block.name], id, "binding"))
        return id

    def _unique(self, wanted: str) -> str:
        """Returns an unused id, because names of values may look like generated ones, such as
        `call_2`.
        """
        id, others = wanted, count(2)
        while id in self._taken:
            id = f"{wanted}_{next(others)}"
        self._taken.add(id)
        return id

    def _function(self, block: bb.Lambda, group: str) -> str:
        name = f"({block.parameter or ''} →)"
        own = f"function_{self._count}"
        id = f"{group}/{own}" if group else own
        self.groups.append(ViewGroup(id, group, name, id, "Lambda"))
        return id


def _node(id: str, block: bb.BuildingBlock, group: str) -> ViewNode:
    kind = type(block).__name__
    label = _label(block)
    origin = block.origin if isinstance(block, bb.Call) else None
    return ViewNode(
        id=id,
        op=kind,
        label=label,
        kind=_KINDS.get(type(block), "call"),
        group=group,
        family=_family(block),
        arguments=(("type signature", shortened(str(block.type), 400)),),
        source=origin and source_line(origin.file, origin.line, origin.function),
    )


def _family(block: bb.BuildingBlock) -> str:
    if isinstance(block, bb.Call):
        return _family(block.function)
    if isinstance(block, bb.CompiledComputation):
        found = family_of(block.name)
        return "elementwise" if found == "other" else found
    return _FAMILIES.get(type(block), "other")


def _label(block: bb.BuildingBlock) -> str:
    match block:
        case bb.Call():
            return f"call {_label(block.function)}" if _is_leaf(block.function) else "call"
        case bb.Selection():
            return f".{block.key}" if isinstance(block.key, str) else f"[{block.key}]"
        case bb.Lambda():
            return f"function of {block.parameter}" if block.parameter else "function"
        case bb.Block() | bb.Struct():
            return type(block).__name__.lower()
    return shortened(str(block), 80)


def _is_leaf(block: bb.BuildingBlock) -> bool:
    return not block.children()
