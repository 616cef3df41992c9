"""Tensors that a layer keeps as plain attributes, such as the `weight` of `weight_norm`.

A layer is one node of a graph. While it is lowered, it assigns abstract values; so the attributes
are restored, and the lowered graph ends with assignments of the operators' results.
"""

from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch.fx.node import Node


@dataclass(frozen=True)
class Assigned:
    """A tensor that a layer has assigned to an attribute.

    Attributes:
        module: the module that has the attribute.
        caller: the node that called the layer last.
    """

    module: torch.nn.Module
    name: str
    value: torch.Tensor
    caller: Node | None


class LayerAttributes:
    """A context manager that records which attributes the modules of `root` assign, and restores
    them at the end.

    Attributes:
        callers: the node that last called each module, for `Assigned.caller`.
        assigned: the assignments, set when the context ends.
    """

    def __init__(self, root: torch.nn.Module) -> None:
        self._root = root
        self._before: dict[torch.nn.Module, dict[str, Any]] = {}
        self.callers: dict[torch.nn.Module, Node | None] = {}
        self.assigned: list[Assigned] = []

    def __enter__(self) -> None:
        self._before = {module: dict(vars(module)) for module in self._root.modules()}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.assigned = []
        for module, before in self._before.items():
            for name, value in list(vars(module).items()):
                if isinstance(value, torch.Tensor) and before.get(name) is not value:
                    caller = self.callers.get(module)
                    self.assigned.append(Assigned(module, name, value, caller))
                    if name in before:
                        vars(module)[name] = before[name]
                    else:
                        del vars(module)[name]
