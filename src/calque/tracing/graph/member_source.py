"""The module that a graph module takes its members from."""

from collections.abc import Container
from typing import Any

import torch
from torch.fx.graph import Graph
from torch.fx.graph_module import GraphModule

_MEMBERS = ("_parameters", "_buffers", "_modules")
RESERVED: frozenset[str] = frozenset(dir(GraphModule)) | {"meta", "shape_env", "_graph", "_code"}
"""Attributes of graph modules, which members of a program cannot have as names."""


def source_of_members(tracer: Any) -> torch.nn.Module:
    """Returns a module with the members of the root and the constants; the user's own is not
    touched.

    A member whose name is an attribute of every graph module (`graph`, `code`, `meta`) gets a `_`
    at the end of its name, in the tracer's graph too.

    Args:
        tracer: has the `root` that was traced, and the constants in `kept`, by name.
    """
    made = torch.nn.Module()
    vars(made).update(vars(tracer.root))
    for members in _MEMBERS:
        vars(made)[members] = dict(vars(tracer.root)[members])
    for new, old in renamed(tracer.graph, vars(made).keys() | _names(made)).items():
        for members in _MEMBERS:
            if old in vars(made)[members]:
                vars(made)[members][new] = vars(made)[members][old]
    for name, value in tracer.kept.items():
        setattr(made, name, value)
    return made


def in_order_of(module: GraphModule, root: torch.nn.Module) -> GraphModule:
    """Puts the members of a graph module, which torch.fx orders by their first use, into the
    program's order, because optimizers identify parameters by position.

    Args:
        module: changed in place, with the modules that torch.fx has made to hold its members.
        root: a module with members of the same names.

    Returns:
        The graph module.
    """
    for path, own in module.named_modules():
        theirs = _submodule(root, path) if own is module or type(own) is torch.nn.Module else None
        if theirs is None or theirs is own or isinstance(theirs, torch.jit.ScriptModule):
            continue
        for members in _MEMBERS:
            held, order = vars(own)[members], vars(theirs)[members]
            names = [
                *(name for name in order if name in held),
                *(n for n in held if n not in order),
            ]
            ordered = {name: held[name] for name in names}
            held.clear()
            held.update(ordered)
    return module


def _submodule(root: torch.nn.Module, path: str) -> torch.nn.Module | None:
    try:
        return root.get_submodule(path)
    except AttributeError:
        return None


def _names(module: torch.nn.Module) -> set[str]:
    return {name for members in _MEMBERS for name in vars(module)[members]}


def renamed(graph: Graph, taken: Container[str]) -> dict[str, str]:
    """Give members other names in a graph, where a graph module has attributes of those names.

    Returns:
        From the new names to the old ones.
    """
    found: dict[str, str] = {}
    for node in graph.nodes:
        first, dot, rest = str(node.target).partition(".")
        if node.op in ("call_module", "get_attr") and first in RESERVED:
            new = f"{first}_"
            while new in taken:
                new += "_"
            found[new] = first
            node.target = f"{new}{dot}{rest}"
    return found
