"""The module whose attributes a graph assigns, as a value that the graph keeps.

It is wrapped so that it is no submodule of the graph: its members would be the graph's.
"""

from typing import Any

import torch


class Owner:
    """A module of the program's, of which no graph module takes any part."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def is_like(self, other: "Owner") -> bool:
        """Whether another one is of the same module."""
        return self.module is other.module

    def __fx_create_arg__(self, tracer: Any) -> Any:
        name = tracer.get_fresh_qualname("_owner")
        tracer.keep(name, self)
        return tracer.create_node("get_attr", name, (), {})
