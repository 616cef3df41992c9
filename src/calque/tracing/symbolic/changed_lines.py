"""Finds the line of a program that changes Python state, as far as the source shows it.

State is compared after a run, so that the line is not observed: it is searched for by the names in
the state's path.
"""

import inspect
import linecache
import re
from collections.abc import Collection, Iterator, Mapping
from types import CodeType
from typing import Any

from calque.state.ownership import Owner

_CHANGE = (
    r"(\[.*\]\s*[-+*/|&@%]*=(?!=)|\s*[-+*/|&@%]*=(?!=)|\.(append|appendleft|extend|insert|pop|"
    r"popleft|popitem|update|setdefault|add|remove|discard|clear|sort|reverse|send|set|seed)\()"
)
_METHOD = r"(\.\w+|\[[^]]*\])*\.\w+\("
_CONSTRUCTORS = ("__init__", "__new__", "__post_init__", "__setstate__")
_NAME = re.compile(r"(?<!['\"\w])[^\W\d]\w*(?!['\"\w])")


class Lines:
    """The lines of the code that ran.

    Args:
        codes: the code objects, with their owners.
        ran: the file and name of the functions that are known to have run.
    """

    def __init__(self, codes: Mapping[CodeType, Owner], ran: Collection[tuple[str, str]]) -> None:
        found = [c for c, o in codes.items() if o >= Owner.PACKAGE and c.co_filename[0] != "<"]
        self._codes = sorted(found, key=lambda code: _is_unlikely(code, ran))
        self._ran = ran

    def naming(self, name: str) -> str:
        """Returns the line that contains a name, as the beginning of a message."""
        return self._first([rf"(?<!\w){re.escape(name)}\b"]) or self._beginning()

    def changing(self, name: str, key: Any = None) -> str:
        """Returns the line that changes a variable, an attribute or an item, as the beginning of a
        message; "" if there is no code.

        Args:
            name: the name as messages show it, such as `opt.param_groups[0]`.
            key: the key of an item.
        """
        return self._first(_searches(name, key)) or self._beginning()

    def _first(self, searches: list[str]) -> str:
        for search in map(re.compile, searches):
            for code in self._codes:
                for number, line in _source(code):
                    if search.search(line):
                        return f"{code.co_filename}:{number} in {code.co_name}: "
            for file in () if self._codes else sorted({file for file, _ in self._ran}):
                for number, line in enumerate(linecache.getlines(file), 1):
                    if search.search(line):  # of a package, whose code was not followed
                        return f"{file}:{number}: "
        return ""

    def _beginning(self) -> str:
        """Returns the beginning of the function that ran, if its source shows no line."""
        for code in self._codes:
            return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}: "
        return ""


def _searches(name: str, key: Any) -> list[str]:
    """Returns the patterns of a change's line, the surest first.

    >>> [bool(re.search(s, "group['lr'] *= 0.5")) for s in _searches("opt.groups[0]", "lr")]
    [False, False, True, False, False, False, False]
    """
    last = re.escape(name.rpartition(".")[2])
    searches = [rf"(?<!\w){last}{_CHANGE}", rf"(?<!\w){last}\b"] if last else []
    if isinstance(key, str):
        searches.append(rf"""\[\s*['"]{re.escape(key)}['"]\s*\]{_CHANGE}""")
    names = [n for n in reversed(_NAME.findall(name)) if n != "self"]
    for end in (_METHOD, r"\b"):
        searches += [rf"(?<!\w){n}{end}" for n in names]
    return searches


def _is_unlikely(code: CodeType, ran: Collection[tuple[str, str]]) -> tuple[bool, bool]:
    """Sorts code last that probably did not run, such as constructors."""
    return (code.co_filename, code.co_name) not in ran, code.co_name in _CONSTRUCTORS


def _source(code: CodeType) -> Iterator[tuple[int, str]]:
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError):
        return
    yield from enumerate(lines, max(first, 1))
