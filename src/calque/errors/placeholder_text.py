"""Placeholder text for values that a trace does not have."""

import sys
from collections.abc import Callable
from typing import Any

from calque.errors.frames import is_librarys


class PlaceholderText(str):
    """Text that a traced program may print, log and concatenate, but not read.

    The eager text would differ, so any use by the program's own code raises. Libraries may read it:
    code that writes to a terminal looks for line ends.

    Args:
        text: the text.
        refusal: creates the error.
    """

    refusal: Callable[[], Exception]

    def __new__(cls, text: str, refusal: Callable[[], Exception]) -> "PlaceholderText":
        """Like `str`."""
        made = super().__new__(cls, text)
        made.refusal = refusal
        return made

    def __radd__(self, other: str) -> "PlaceholderText":
        return PlaceholderText(str(other) + str.__str__(self), self.refusal)

    def splitlines(self, keepends: bool = False) -> list[str]:
        """Like `str.splitlines`, for code that indents text or prints it line by line."""
        return [PlaceholderText(line, self.refusal) for line in str.splitlines(self, keepends)]

    def __reduce__(self) -> tuple[Any, ...]:
        return str, ("".join([self]),)


def _question(name: str) -> Callable[..., Any]:
    answer = getattr(str, name)

    def method(self: PlaceholderText, *args: Any, **kwargs: Any) -> Any:
        if not is_librarys(sys._getframe(1)):
            raise self.refusal()
        return answer(self, *args, **kwargs)

    return method


def _form(name: str) -> Callable[..., Any]:
    answer = getattr(str, name)

    def method(self: PlaceholderText, *args: Any, **kwargs: Any) -> Any:
        return PlaceholderText(answer(self, *args, **kwargs), self.refusal)

    return method


_QUESTIONS = (
    *("__contains__", "__getitem__", "__hash__", "__iter__", "__len__"),
    *("__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__"),
    *("count", "endswith", "find", "index", "rfind", "rindex", "startswith"),
    *("encode", "partition", "rpartition", "rsplit", "split"),
)
_FORMS = (
    *("__add__", "__mul__", "capitalize", "casefold", "center", "expandtabs", "ljust", "lower"),
    *("lstrip", "removeprefix", "removesuffix", "replace", "rjust", "rstrip", "strip", "title"),
    *("translate", "upper"),
)
for _name in _QUESTIONS:
    setattr(PlaceholderText, _name, _question(_name))
for _name in _FORMS:
    setattr(PlaceholderText, _name, _form(_name))
