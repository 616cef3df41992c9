"""The groups of a graph of torch.fx, which are the calls of modules in its nodes' module stacks."""

import re

from torch.fx.node import Node

from calque.view.graph import ViewGroup

_LOCAL = re.compile(r"^L\['[^']*'\]\.?")
"""The prefix of module paths in Dynamo's graphs."""


class Groups:
    """The groups found so far.

    Attributes:
        around: the id of the group that encloses all nodes read now.
    """

    def __init__(self) -> None:
        self.around = ""
        self._made: dict[str, ViewGroup] = {}

    def all(self) -> tuple[ViewGroup, ...]:
        """Returns the groups, outer before inner groups."""
        return tuple(self._made.values())

    def add(self, parent: str, name: str, path: str = "", type: str = "", call: int = 0) -> str:
        """Returns the id of a group, and adds it if it is new."""
        own = name.replace("/", "∕") + (f"@{call}" if call else "")
        id = f"{parent}/{own}" if parent else own
        known = self._made.get(id)
        if known is None or (type and not known.type):
            self._made[id] = ViewGroup(id, parent, name, path or name, type, call)
        return id

    def of(self, node: Node, member: str | None) -> str:
        """Returns the id of the group of a node.

        Args:
            node: the node.
            member: the path of the parameter that the node represents.
        """
        if member is not None:
            return self._at(member.split(".")[:-1], {})
        if node.op in ("placeholder", "output"):
            return self.around
        stack: dict[str, tuple[str, int]] = {}
        last = ""
        for key, (path, kind) in (node.meta.get("nn_module_stack") or {}).items():
            path = _LOCAL.sub("", path)
            if node.op == "call_module" and path == node.target:
                continue
            call = str(key).rpartition("@")[2]
            name = kind.__name__ if isinstance(kind, type) else str(kind).rpartition(".")[2]
            if path:
                stack[path] = (name, int(call) if "@" in str(key) and call.isdigit() else 0)
                last = path
        return self._at(last.split(".") if last else [], stack)

    def _at(self, parts: list[str], stack: dict[str, tuple[str, int]]) -> str:
        id = self.around
        for count, part in enumerate(parts, start=1):
            path = ".".join(parts[:count])
            id = self.add(id, part, path, *stack.get(path, ("", 0)))
        return id
