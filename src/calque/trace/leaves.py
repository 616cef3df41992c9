"""Leaf modules, and whether the program has changed them before it calls them.

A leaf is one node: when the graph runs, the module is called as it is then. What the program has
changed about it for this call, such as `self.dropout.train()`, a hook or another weight, is gone by
then; such a call is followed into the module instead, where each of these things takes effect.
"""

from collections import OrderedDict
from collections.abc import Iterable
from operator import is_
from typing import Any

from torch.nn import Module
from torch.nn.modules import module as module_of_torch

from calque.state.rows import is_own_hook

_GLOBAL_HOOKS = tuple(
    value
    for name, value in vars(module_of_torch).items()
    if name.startswith("_global_") and isinstance(value, dict)
)


class Leaves:
    """Modules as they were before a run of the program.

    Args:
        modules: those of the root.
    """

    def __init__(self, modules: Iterable[Module]) -> None:
        self._kinds: dict[type, list[Any]] = {}
        self._before = {module: self._parts(module) for module in modules}
        self._hooks = _global_hooks()
        self._assigned: set[Module] = set()
        self._made: set[Module] = set()

    def made(self, module: Module) -> None:
        """The program makes a module, which is no leaf of it with a state of its own."""
        self._made.add(module)

    def assigned(self, module: Module) -> bool:
        """The program assigns an attribute; returns whether it is one that others may see.

        That counts even where the attribute has this value already: `self.dropout.train()` says
        how the module is to be called, also when the graph runs in evaluation mode.
        """
        if module in self._made:
            return False
        self._assigned.add(module)
        return True

    def add(self, root: Module) -> None:
        """A module that is no part of the root, and is called."""
        for module in root.modules():
            if module not in self._before:
                self._before[module] = self._parts(module)

    def is_changed(self, leaf: Module) -> bool:
        """Whether a call does not do what it would have done before the run."""
        if any(not _alike(a, b) for a, b in zip(_global_hooks(), self._hooks)):
            return True
        return any(map(self._differs, leaf.modules()))

    def _differs(self, module: Module) -> bool:
        if module in self._assigned:
            return True
        before = self._before.get(module)
        if before is None:
            return module not in self._made
        now = self._parts(module, known=False)
        return len(now) != len(before) or not all(map(_alike, now, before))

    def _parts(self, module: Module, known: bool = True) -> list[Any]:
        """All that a call of a module depends on, container by container."""
        held = vars(module)
        parts = [(type(module),), dict(held)]
        parts += [_copied(v) for v in held.values() if v.__class__ in _CONTAINERS and v]
        for kind in type(module).__mro__:
            if kind is Module:
                break
            parts.append(self._class(kind) if known else vars(kind))
        return parts

    def _class(self, kind: type) -> Any:
        if kind not in self._kinds:
            self._kinds[kind] = dict(vars(kind))
        return self._kinds[kind]


def _global_hooks() -> list[dict[int, Any]]:
    """The user's hooks of all modules."""
    return [{k: h for k, h in hooks.items() if not is_own_hook(h)} for hooks in _GLOBAL_HOOKS]


_CONTAINERS = frozenset((dict, list, set, OrderedDict))


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else list(value)


def _alike(a: Any, b: Any) -> bool:
    """Whether two containers hold the same objects, in the same order."""
    if len(a) != len(b):
        return False
    if not isinstance(a, (tuple, list)):
        if not all(map(is_, a, b)) and list(a) != list(b):
            return False
        a, b = a.values(), b.values()
    return all(map(is_, a, b))
