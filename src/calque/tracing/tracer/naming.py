"""The names by which a graph refers to modules, parameters and constants."""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import Argument

from calque.tracing.graph.templates import asks_when_made, made_by
from calque.tracing.tracer.constants import is_constant
from calque.tracing.tracer.tracer import Tracer


class NamingTracer(Tracer):
    """Like `Tracer`, but constants are stored on the graph module instead of the root.

    Attributes:
        kept: the constants, by name.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.kept: dict[str, Any] = {}

    def keep(self, name: str, value: Any) -> None:
        """Keep a constant for the graph module, under a name that the root does not have."""
        self.kept[name] = value

    def get_fresh_qualname(self, prefix: str) -> str:
        """Returns a name that neither the root nor a kept constant has."""
        number = 0
        while f"{prefix}{number}" in self.kept or hasattr(self.root, f"{prefix}{number}"):
            number += 1
        return f"{prefix}{number}"

    def _lower(self, a: object) -> Argument:
        if not is_constant(a):
            return super()._lower(a)
        name = next((name for name, value in self.kept.items() if value is a), None)
        if name is None:
            name = self.get_fresh_qualname("_constant")
            self.keep(name, a)
        node = self.create_node("get_attr", name, (), {})
        node.meta["val"] = a
        return node

    def create_arg(self, a: Any) -> Argument:
        """Like `Tracer.create_arg`, but a function creates named tuples whose constructor needs
        values.
        """
        if isinstance(a, tuple) and hasattr(a, "_fields") and asks_when_made(type(a)):
            parts = tuple(self.create_arg(part) for part in a)
            return self.create_node("call_function", made_by, (type(a), *parts), {})
        return super().create_arg(a)

    def resolve(self, target: str) -> Any:
        """Returns the module, parameter or constant that a name in the graph refers to."""
        value: Any = self.root
        if target in self.kept:
            return self.kept[target]
        path = target
        first, _, rest = target.partition(".")
        if first in self.kept:
            value, target = self.kept[first], rest
        for part in target.split("."):
            value = _member(value, part)
        if isinstance(value, torch.fx.Proxy):  # the program has assigned it
            return next((held for held, name in self.tensor_attrs.items() if name == path), value)
        return value

    def path_of_module(self, mod: torch.nn.Module) -> str:
        """Returns the name of `mod`. A module outside the root, such as a global, is kept as a
        constant.
        """
        paths = self.submodule_paths
        if paths is None:
            paths = {}
            self.submodule_paths: dict[torch.nn.Module, str] | None = paths
        if mod not in paths:
            name = self.get_fresh_qualname(_prefix(type(mod)))
            self.keep(name, mod)
            for inner, module in mod.named_modules():
                paths.setdefault(module, f"{name}.{inner}" if inner else name)
        return paths[mod]

    def is_member(self, root: torch.nn.Module, path: str, value: object) -> bool:
        """Returns True if a path from a module also leads to a value when the graph runs."""
        return True

    def _name_of(self, value: object, members: Callable[[], Any]) -> str | None:
        if isinstance(value, torch.fx.Proxy):  # may represent a different member
            return None
        name = super()._name_of(value, members)
        if name is not None and name not in self.kept:
            root = self.root
            if not isinstance(root, torch.nn.Module) or self.is_member(root, name, value):
                return name
        elif name is not None:
            return name
        for home, module in self.kept.items():
            if isinstance(module, torch.nn.Module):
                for tensors in (module.named_parameters, module.named_buffers):
                    for inner, member in tensors():
                        if member is value and self.is_member(module, inner, value):
                            self._names[id(value)] = (f"{home}.{inner}", value)
                            return f"{home}.{inner}"
        if isinstance(value, torch.nn.Parameter):
            name = self.get_fresh_qualname("_parameter")
            self.keep(name, value)
            self._names[id(value)] = (name, value)
        return name


def _prefix(kind: type) -> str:
    return f"_{kind.__name__.lower()}_"


def is_name_of_kept(name: str, kind: object) -> bool:
    """Returns True if this may be the name that a graph gave to a module outside the root, of the
    class `kind`.

    >>> is_name_of_kept("_linear_0", torch.nn.Linear), is_name_of_kept("linear", torch.nn.Linear)
    (True, False)
    """
    prefix = _prefix(kind) if isinstance(kind, type) else ""
    return bool(prefix) and name.startswith(prefix) and name[len(prefix) :].isdigit()


def _member(module: torch.nn.Module, name: str) -> Any:
    for members in (module._parameters, module._buffers, module._modules):
        if name in members:
            return members[name]
    return object.__getattribute__(module, name)
