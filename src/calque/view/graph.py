"""`ViewGraph`: the form of a graph for viewing, which readers create and writers use."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Literal

Kind = Literal["input", "parameter", "constant", "call", "module", "check", "output", "group"]
"""The kind of a node; `"group"` is a collapsed group."""


@dataclass(frozen=True)
class TensorLook:
    """A tensor's shape and dtype, without its values.

    >>> str(TensorLook("float32", (2, "s0")))
    'float32[2, s0]'
    """

    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class SourceLine:
    """A line of the program; `text` is empty if the file cannot be read."""

    file: str
    line: int
    function: str = ""
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class ViewNode:
    """One node.

    Attributes:
        id: its name, unique in the graph.
        op: the function or layer that it calls, such as `torch.nn.functional.relu`, `Linear` or
            `aten.add.Tensor`.
        label: a short form of `op`.
        kind: the kind of node.
        group: the id of its group; "" at the top.
        family: the kind of operator, such as `"convolution"`; see `families`.
        served: how the device computes it: `"rule"`, `"decomposition"`, `"fallback"` (a kernel of
            the CPU) or `"escape"` (a value is read into Python); "" if unknown.
        outputs: the tensors that it returns.
        arguments: pairs of a name and a value, as text.
        parameters: the names and looks of its own weights.
        source: its line in the program.
        levels: its operators at lower levels, `"aten"` and `"stablehlo"`.
    """

    id: str
    op: str
    label: str
    kind: Kind = "call"
    group: str = ""
    family: str = "other"
    served: str = ""
    outputs: tuple[TensorLook, ...] = ()
    arguments: tuple[tuple[str, str], ...] = ()
    parameters: tuple[tuple[str, TensorLook], ...] = ()
    source: SourceLine | None = None
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class ViewEdge:
    """A value that one node takes from another.

    Attributes:
        source, target: the ids of the nodes.
        kind: `"data"`, or `"binding"`: from the definition of a name to a use of it.
    """

    source: str
    target: str
    kind: str = "data"


@dataclass(frozen=True)
class ViewGroup:
    """Nodes that belong together: a call of a module, a function, or a run of similar groups.

    Attributes:
        id: its name, unique in the graph.
        parent: the id of the enclosing group; "" at the top.
        name: the last part of its path.
        path: the path of the module.
        type: the class of the module.
        call: how many times the module had been called before.
        repeat: how many similar groups it represents; 1 for a single group.
    """

    id: str
    parent: str
    name: str
    path: str
    type: str = ""
    call: int = 0
    repeat: int = 1


@dataclass(frozen=True)
class ViewGraph:
    """The nodes in the order of the program, their edges, and their groups.

    Attributes:
        name: the name of the program.
        origin: a description of its source.
        nodes, edges, groups: its parts.

    Raises:
        ValueError: two parts have the same id, or a part refers to one that does not exist.
    """

    name: str
    origin: str
    nodes: tuple[ViewNode, ...]
    edges: tuple[ViewEdge, ...]
    groups: tuple[ViewGroup, ...] = ()

    def __post_init__(self) -> None:
        if len(self.node) != len(self.nodes) or len(self.group) != len(self.groups):
            raise ValueError("two nodes, or two groups, have the same id")
        homes = {n.group for n in self.nodes} | {g.parent for g in self.groups}
        unknown = sorted(homes - self.group.keys() - {""})
        ends = {end for edge in self.edges for end in (edge.source, edge.target)}
        unknown += sorted(ends - self.node.keys())
        if unknown:
            raise ValueError(f"the graph has no {', '.join(map(repr, unknown))}")

    @cached_property
    def node(self) -> dict[str, ViewNode]:
        """The nodes by id."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def group(self) -> dict[str, ViewGroup]:
        """The groups by id."""
        return {group.id: group for group in self.groups}

    def ancestry(self, group: str) -> tuple[str, ...]:
        """Returns the ids of a group and its enclosing groups, outermost first."""
        found: list[str] = []
        while group:
            found.append(group)
            group = self.group[group].parent
        return tuple(reversed(found))

    @cached_property
    def children(self) -> dict[str, tuple[ViewNode | ViewGroup, ...]]:
        """The members of each group, in the order of the program, weights last; "" is the top."""
        found: dict[str, list[ViewNode | ViewGroup]] = {"": []}
        seen: set[str] = set()
        for node in sorted(self.nodes, key=lambda node: node.kind in ("parameter", "constant")):
            for id in self.ancestry(node.group):
                if id not in seen:
                    seen.add(id)
                    found.setdefault(self.group[id].parent, []).append(self.group[id])
            found.setdefault(node.group, []).append(node)
        return {id: tuple(parts) for id, parts in found.items()}
