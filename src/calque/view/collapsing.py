"""A graph with its deeper groups drawn as one node each."""

from dataclasses import replace

from calque.view.graph import ViewEdge, ViewGraph, ViewGroup, ViewNode


def collapsed(graph: ViewGraph, depth: int | None) -> ViewGraph:
    """Returns the graph with its outer `depth` levels; a group below them is one node.

    With a depth of 1 the outermost groups are nodes. Edges connect the collapsed groups, one for
    each pair of ends. None collapses nothing.
    """
    if depth is None:
        return graph
    place = {node.id: _place(graph, node, depth) for node in graph.nodes}
    members: dict[str, list[ViewNode]] = {}
    for node in graph.nodes:
        members.setdefault(place[node.id], []).append(node)
    nodes = [
        graph.node[id] if id in graph.node and place[id] == id else _as_node(graph, id, parts)
        for id, parts in members.items()
    ]
    edges = dict.fromkeys(
        ViewEdge(place[e.source], place[e.target], e.kind)
        for e in graph.edges
        if place[e.source] != place[e.target]
    )
    kept = [group for group in graph.groups if len(graph.ancestry(group.id)) < depth]
    return replace(graph, nodes=tuple(nodes), edges=tuple(edges), groups=tuple(kept))


def _place(graph: ViewGraph, node: ViewNode, depth: int) -> str:
    groups = graph.ancestry(node.group)
    if len(groups) < depth:
        return node.id
    id = groups[depth - 1]
    return id if id not in graph.node else f"{id} (group)"


def _as_node(graph: ViewGraph, id: str, members: list[ViewNode]) -> ViewNode:
    group = graph.group[id.removesuffix(" (group)")]
    inside = {node.id for node in members}
    leaving = {e.source for e in graph.edges if e.source in inside and e.target not in inside}
    outputs = tuple(look for node in members if node.id in leaving for look in node.outputs)
    return ViewNode(
        id=id,
        op=group.type or group.name,
        label=title(group),
        kind="group",
        group=group.parent,
        family="group",
        outputs=outputs,
        parameters=tuple(dict.fromkeys(p for node in members for p in node.parameters)),
        source=next((node.source for node in members if node.source), None),
    )


def title(group: ViewGroup) -> str:
    """Returns the title of a group.

    >>> title(ViewGroup("layers/0", "layers", "0", "layers.0", "Block"))
    '0: Block'
    """
    text = f"{group.name}: {group.type}" if group.type else group.name
    text += f" (call {group.call + 1})" if group.call else ""
    return f"{text} ×{group.repeat}" if group.repeat > 1 else text
