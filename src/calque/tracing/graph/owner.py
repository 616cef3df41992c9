"""Objects whose attributes or items a graph assigns.

The object is wrapped so that a module does not become a submodule of the graph.
"""

from typing import Any


class GraphOwner:
    """A module or dictionary of the program that the graph refers to.

    Args:
        held: the module or the dictionary.
    """

    def __init__(self, held: Any) -> None:
        self.held = held

    def is_like(self, other: "GraphOwner") -> bool:
        """Returns True if both refer to the same object."""
        return self.held is other.held

    def __fx_create_arg__(self, tracer: Any) -> Any:
        name = next((name for name, value in tracer.kept.items() if value is self), None)
        if name is None:
            name = tracer.get_fresh_qualname("_owner")
            tracer.keep(name, self)
        return tracer.create_node("get_attr", name, (), {})
