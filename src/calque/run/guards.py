"""Guards: what a compiled program was made for that is not an input of it.

A program serves a call only if every guard holds; one that fails names itself, so that
`explain()` can say why a function was traced again.
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from calque.run.optimizers import settings_of
from calque.run.scalars import Watch

_SCALARS = (bool, int, float, str)


def ambient() -> tuple[Any, ...]:
    """PyTorch's modes that change what a function computes."""
    enabled = torch.is_autocast_enabled("jax")
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        enabled and torch.get_autocast_dtype("jax"),
        torch.get_default_dtype(),
    )


class ModuleGuard:
    """The train/eval flag and the plain attributes (p, eps, momentum, ...) of some modules."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.names: list[str] = []
        self.rows: list[tuple[dict[str, Any], Any, Any]] = []
        for module in modules:
            attributes = vars(module)
            keys = [k for k, v in attributes.items() if type(v) in _SCALARS]
            if keys:
                get = itemgetter(*keys)
                self.rows.append((attributes, get, get(attributes)))
                self.names.append(f"{type(module).__name__}: {', '.join(keys)}")

    def holds(self) -> bool:
        """Whether every attribute is as it was."""
        try:
            for attributes, get, expected in self.rows:
                if get(attributes) != expected:
                    return False
        except KeyError:
            return False
        return True

    def why(self) -> str:
        """The first attribute that differs."""
        for (attributes, _, _), name, row in zip(self.rows, self.names, self.rows, strict=True):
            kind, _, keys = name.partition(": ")
            expected = row[2] if isinstance(row[2], tuple) and ", " in keys else (row[2],)
            for key, value in zip(keys.split(", "), expected, strict=False):
                now = attributes.get(key)
                if now != value:
                    return f"{kind}.{key} was {value!r} and is {now!r}"
        return "a module changed"


class GradientGuard:
    """requires_grad of the leaves a program reads, and which of them have a gradient."""

    def __init__(self, leaves: list[torch.Tensor], has_gradient: list[bool]) -> None:
        self.leaves = leaves
        self.requires = [leaf.requires_grad for leaf in leaves]
        self.trainable = [leaf for leaf in leaves if leaf.requires_grad]
        self.has_gradient = [
            has for leaf, has in zip(leaves, has_gradient, strict=True) if leaf.requires_grad
        ]

    def holds(self) -> bool:
        """Whether every flag and every gradient's presence is as it was."""
        return [leaf.requires_grad for leaf in self.leaves] == self.requires and [
            leaf.grad is not None for leaf in self.trainable
        ] == self.has_gradient

    def why(self) -> str:
        """What differs."""
        if [leaf.requires_grad for leaf in self.leaves] != self.requires:
            return "requires_grad of a tensor changed"
        return "a gradient that was None is there now, or the other way round"


class OptimizerGuard:
    """The settings of optimizers that are not live numbers (nesterov, amsgrad, parameter lists)."""

    def __init__(self, optimizers: Iterable[Optimizer], watch: Watch) -> None:
        self.rows = [(o, settings_of(o), _members(o)) for o in optimizers]
        self.watch = watch

    def holds(self) -> bool:
        """Whether every setting, parameter list and comparison is as it was."""
        return self.watch.holds() and all(
            settings_of(optimizer) == settings and _members(optimizer) == members
            for optimizer, settings, members in self.rows
        )

    def why(self) -> str:
        """What differs."""
        for optimizer, settings, members in self.rows:
            if settings_of(optimizer) != settings:
                return f"a setting of {type(optimizer).__name__} changed"
            if _members(optimizer) != members:
                return f"the parameters of {type(optimizer).__name__} changed"
        return "a comparison with a hyper-parameter has another answer"


def _members(optimizer: Optimizer) -> list[tuple[int, int]]:
    return [(len(group["params"]), id(group["params"])) for group in optimizer.param_groups]


class ScalarGuard:
    """Plain values in the function's own closure and globals."""

    def __init__(self, scalars: list[tuple[Any, Any, Any]]) -> None:
        self.rows = scalars

    def holds(self) -> bool:
        """Whether every value is as it was."""
        return all(_lookup(holder, name) == value for holder, name, value in self.rows)

    def why(self) -> str:
        """The first that differs."""
        for holder, name, value in self.rows:
            now = _lookup(holder, name)
            if now != value:
                label = "a closure variable" if name == "cell_contents" else f"the global {name!r}"
                return f"{label} was {value!r} and is {now!r}"
        return "a variable changed"


def _lookup(holder: Any, name: str) -> Any:
    if isinstance(holder, dict):
        return holder.get(name)
    try:
        return holder.cell_contents
    except ValueError:
        return None


class HostGuard:
    """CPU tensors that Python code of the function looked at: their values must be the same."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self.rows = [(tensor, tensor.detach().clone()) for tensor in tensors]

    def holds(self) -> bool:
        """Whether every tensor has the values it had."""
        return all(torch.equal(tensor, value) for tensor, value in self.rows)

    def why(self) -> str:
        """What differs."""
        return "a CPU tensor that the function computes with changed; move it to 'jax'"
