"""The source of a generated function, with the objects that it refers to."""

from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from calque.device.runtime.interrupts import settles_in

MISS: Any = object()
"""Returned if there is no result, so that the general path decides."""

LEAVE = "return MISS"
"""The statement with which a function leaves a call to the general path."""

_FILE = "<made by calque.jit>"
_CODES = 1024
"""The number of sources whose code is cached; programs of the same form have equal sources."""


class GeneratedFunction:
    """A function that is being generated.

    Its text consists of calque's own code and of numbered names. Nothing from the user's program
    (names, values, shapes) becomes part of the text; such values are objects to which the names
    refer.

    Args:
        parameters: the parameters of the function.
    """

    def __init__(self, *parameters: str) -> None:
        self._lines = [f"def call({', '.join(parameters)}):"]
        self._depth = 1
        self._names: dict[int, str] = {}
        self._held: dict[str, Any] = {"__name__": __name__, "MISS": MISS}
        self._assigned: set[str] = set()

    def name(self, value: Any) -> str:
        """Returns the name by which the function refers to an object; one name for each object."""
        found = self._names.get(id(value))
        if found is None:
            found = self._names[id(value)] = f"o{len(self._names)}"
            self._held[found] = value
        return found

    def line(self, text: str, *values: Any) -> None:
        """Write a line.

        Args:
            text: the line, with `{}` for the name of each object.
            values: the objects.
        """
        self._lines.append("    " * self._depth + text.format(*map(self.name, values)))

    def is_first(self, name: str) -> bool:
        """Returns True if a local variable occurs for the first time."""
        is_new = name not in self._assigned
        self._assigned.add(name)
        return is_new

    def indent(self, steps: int = 1) -> None:
        """Indent the following lines, or dedent for a negative number."""
        self._depth += steps

    def function(self) -> FunctionType:
        """Returns the function; signal handlers wait for its calls (see `interrupts.settles`).

        Its code is its own, because the interpreter adapts code to the objects that it refers to.
        """
        code = _compiled("\n".join(self._lines)).replace()
        settles_in(code)
        return FunctionType(code, self._held, "call")


@lru_cache(_CODES)
def _compiled(text: str) -> CodeType:
    namespace: dict[str, Any] = {}
    exec(compile(text, _FILE, "exec"), namespace)
    return namespace["call"].__code__
