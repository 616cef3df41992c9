"""What a traced function changes in Python: the plain attributes of modules."""

from collections.abc import Iterable
from typing import Any

from torch.nn import Module

_SCALARS = (bool, int, float, str, type(None))


class PythonState:
    """The attributes of modules before a trace, to restore after an error or compare after it.

    Attributes:
        modules: the modules watched from the start.
        known: every module watched.
        effects: after `changed`, the plain attributes that the function set: dict, key, value.
    """

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = list(modules)
        self.known: set[Module] = set()
        self.effects: list[tuple[dict[str, Any], str, Any]] = []
        self._before: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for module in self.modules:
            self._watch(module)

    def watch(self, module: Module) -> list[Module]:
        """Watch a module found during the trace, and those in it; gives the new ones."""
        new = [m for m in module.modules() if m not in self.known]
        for one in new:
            self._watch(one)
        return new

    def _watch(self, module: Module) -> None:
        self.known.add(module)
        attributes = vars(module)
        self._before.append((attributes, dict(attributes)))
        for name in ("_buffers", "_parameters"):
            self._before.append((attributes[name], dict(attributes[name])))

    def restore(self) -> None:
        """Put every attribute back."""
        for attributes, before in self._before:
            if attributes.keys() != before.keys() or any(
                attributes[key] is not value for key, value in before.items()
            ):
                attributes.clear()
                attributes.update(before)

    def changed(self) -> None:
        """Collect the plain attributes that differ now."""
        for attributes, before in self._before:
            for key, value in attributes.items():
                if type(value) in _SCALARS and (key not in before or before[key] != value):
                    self.effects.append((attributes, key, value))

    def replay(self) -> None:
        """Set the attributes as the function would."""
        for attributes, key, value in self.effects:
            attributes[key] = value
