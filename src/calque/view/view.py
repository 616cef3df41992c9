"""`View`: the result of `calque.show`; text, pictures and pages of a graph."""

import html as html_escapes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calque.tracing.core.files import replacing
from calque.view.collapsing import collapsed
from calque.view.folding import folded
from calque.view.graph import ViewEdge, ViewGraph, ViewGroup, ViewNode
from calque.view.writers import dot, graphviz, html, mermaid, model_explorer, rich_tree, text

Overlays = Mapping[str, Mapping[str, float]]


class View:
    """A graph that can be printed, drawn and saved.

    In a notebook it displays itself. `print(view)` prints a tree, and `rich.print(view)` a
    coloured one.

    Attributes:
        graph: the graph, a `ViewGraph`.
        depth: the default number of levels to show; None for all.
        overlays: numbers of nodes, by the name of the overlay and the id of the node.

    >>> import calque, torch
    >>> view = calque.show(calque.trace(torch.nn.ReLU(), torch.ones(3)))
    >>> view
    <view of ReLU: 3 nodes, 2 edges, 0 groups>
    >>> print(view.mermaid().splitlines()[0])
    flowchart TB
    """

    def __init__(
        self, graph: ViewGraph, depth: int | None = None, overlays: Overlays | None = None
    ) -> None:
        self.graph: ViewGraph = graph
        self.depth: int | None = None
        self.depth = self._depth(depth)
        self.overlays: dict[str, dict[str, float]] = {
            name: dict(values) for name, values in (overlays or {}).items()
        }

    @property
    def nodes(self) -> tuple[ViewNode, ...]:
        """The nodes, in the order of the program."""
        return self.graph.nodes

    @property
    def edges(self) -> tuple[ViewEdge, ...]:
        """The edges."""
        return self.graph.edges

    @property
    def groups(self) -> tuple[ViewGroup, ...]:
        """The groups."""
        return self.graph.groups

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        counts = f"{len(self.nodes)} nodes, {len(self.edges)} edges, {len(self.groups)} groups"
        return f"<view of {self.graph.name}: {counts}>"

    def __rich__(self) -> Any:
        return rich_tree.write(folded(self.graph), self.depth)

    def _repr_html_(self) -> str:
        page = html_escapes.escape(self.html(), quote=True)
        style = "width:100%;height:560px;border:1px solid #8884;border-radius:8px"
        allowed = "allow-scripts allow-downloads"
        return f'<iframe srcdoc="{page}" style="{style}" sandbox="{allowed}"></iframe>'

    def text(self, depth: int | None = None) -> str:
        """Returns the graph as a text tree, with runs of identical blocks shown once."""
        return text.write(folded(self.graph), self._depth(depth))

    def dot(self, depth: int | None = None) -> str:
        """Returns the graph in Graphviz's DOT language."""
        return dot.write(collapsed(self.graph, self._depth(depth)))

    def mermaid(self, depth: int | None = None) -> str:
        """Returns the graph in Mermaid's language."""
        return mermaid.write(collapsed(self.graph, self._depth(depth)))

    def model_explorer(self) -> str:
        """Returns the whole graph as JSON for Model Explorer."""
        return model_explorer.write(self.graph)

    def html(self) -> str:
        """Returns a self-contained page, which needs no network or other files."""
        return html.write(folded(self.graph), self.depth, self.overlays)

    def svg(self, depth: int | None = None) -> str:
        """Returns a picture, drawn by Graphviz.

        Raises:
            RuntimeError: Graphviz's program `dot` is not installed.
        """
        return graphviz.picture(self.dot(depth), "svg").decode()

    def save(self, path: str | Path) -> Path:
        """Write a file, in the format of its extension.

        Args:
            path: ends in `.html`, `.dot` (`.gv`), `.mmd` (`.mermaid`), `.json`, `.txt`, `.svg`,
                `.png` or `.pdf`; the last three are made by Graphviz.

        Returns:
            The path.

        Raises:
            ValueError: the format does not exist.
            RuntimeError: Graphviz is needed but not installed.
        """
        path = Path(path)
        made = self._formatted(path.suffix.lower())
        with replacing(path) as part:
            part.write_bytes(made if isinstance(made, bytes) else made.encode())
        return path

    def _formatted(self, ending: str) -> str | bytes:
        if ending in _PICTURES:
            return graphviz.picture(self.dot(), ending[1:])
        if ending not in _FORMATS:
            known = ", ".join((*_FORMATS, *_PICTURES))
            given = repr(ending) if ending else "a file without an extension"
            raise ValueError(f"a view can be saved as {known}, not as {given}")
        return getattr(self, _FORMATS[ending])()

    def _depth(self, depth: int | None) -> int | None:
        depth = self.depth if depth is None else depth
        if depth is not None and not (isinstance(depth, int) and depth >= 1):
            raise ValueError(f"depth must be an integer of at least 1, not {depth!r}")
        return depth


_PICTURES = (".svg", ".png", ".pdf")
_FORMATS = {
    ".html": "html",
    ".htm": "html",
    ".dot": "dot",
    ".gv": "dot",
    ".mmd": "mermaid",
    ".mermaid": "mermaid",
    ".json": "model_explorer",
    ".txt": "text",
}
