"""Writes a graph as a coloured tree of the package rich."""

from typing import Any

from calque.errors.printable import printable
from calque.view.collapsing import title
from calque.view.graph import ViewGraph, ViewGroup
from calque.view.palette import COLOURS
from calque.view.writers.text import details, rows


def write(graph: ViewGraph, depth: int | None = None) -> Any:
    """Returns the tree as a `rich.tree.Tree`, for `rich.print`.

    Raises:
        ImportError: rich is not installed.
    """
    try:
        from rich.text import Text
        from rich.tree import Tree
    except ImportError:
        raise ImportError(
            "a coloured tree needs the package rich: pip install calque[view]"
        ) from None

    tree = Tree(Text(printable(graph.name), "bold"), guide_style="dim")
    stack = [tree]
    for branches, part, closed in rows(graph, depth):
        level = len(branches) // 3
        name, more = details(part)
        if isinstance(part, ViewGroup):
            text = Text(printable(title(part)) + (" …" if closed else ""), "bold")
        else:
            text = Text(name, COLOURS[part.family].light)
            text.append(f"  {more}", "dim")
        del stack[level:]
        stack.append(stack[-1].add(text))
    return tree
