"""Finds the line of a program that changes Python state, as far as the source shows it.

State is compared after a run, so that the line is not observed: it is searched for by the names in
the state's path. Unless a single line can be meant, the message says "near".
"""

import inspect
import linecache
import re
import tokenize
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
        return self._first([rf"(?<!\w){re.escape(name)}\b"], 1) or self._beginning()

    def changing(self, name: str, key: Any = None) -> str:
        """Returns the line that changes a variable, an attribute or an item, as the beginning of a
        message; "" if there is no code.

        Args:
            name: the name as messages show it, such as `opt.param_groups[0]`.
            key: the key of an item.
        """
        return self._first(_searches(name, key), 1) or self._beginning()

    def _first(self, searches: list[str], sure: int) -> str:
        """Returns the first line that is found.

        Args:
            searches: the patterns.
            sure: how many of them show that a line is the right one, if no other has them.
        """
        for i, search in enumerate(map(re.compile, searches)):
            found = [*self._lines_with(search)]
            if found:
                file, number, name = found[0]
                near = "near " if i >= sure or len(found) > 1 else ""
                return f"{near}{file}:{number} in {name}: "
            for file in () if self._codes else sorted({file for file, _ in self._ran}):
                for number, line in enumerate(linecache.getlines(file), 1):
                    if search.search(line):  # of a package, whose code was not followed
                        return f"near {file}:{number}: "
        return ""

    def _lines_with(self, search: re.Pattern[str]) -> Iterator[tuple[str, int, str]]:
        """Yields the file, number and function of lines, of the likeliest code that has any."""
        seen: set[tuple[str, int]] = set()
        unlikely = None
        for code in self._codes:
            if unlikely not in (None, _is_unlikely(code, self._ran)):
                return
            for number, line in _source(code):
                if search.search(line) and (code.co_filename, number) not in seen:
                    seen.add((code.co_filename, number))
                    unlikely = _is_unlikely(code, self._ran)
                    yield code.co_filename, number, code.co_name

    def _beginning(self) -> str:
        """Returns the beginning of the function that ran, if its source shows no line."""
        for code in self._codes:
            return f"near {code.co_filename}:{code.co_firstlineno} in {code.co_name}: "
        return ""


def _searches(name: str, key: Any) -> list[str]:
    """Returns the patterns of a change's line, the surest first.

    >>> [bool(re.search(s, "group['lr'] *= 0.5")) for s in _searches("opt.groups[0]", "lr")]
    [False, False, True, False, False, False, False]
    """
    last = re.sub("['\"]", "['\"]", re.escape(name.rpartition(".")[2]))
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
    """Yields the lines of code, with their numbers, without comments and docstrings."""
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError):
        return
    first = max(first, 1)
    for row, start, end in _comments(lines):
        line = lines[row]
        lines[row] = line[:start] + " " * (end - start) + line[end:]
    yield from enumerate(lines, first)


def _comments(lines: list[str]) -> list[tuple[int, int, int]]:
    """Returns the row, beginning and end of comments and of strings that are statements."""
    found: list[tuple[int, int, int]] = []
    begins = True
    try:
        for token in tokenize.generate_tokens(iter(lines).__next__):
            if token.type == tokenize.COMMENT or (begins and token.type == tokenize.STRING):
                (row, start), (last, end) = token.start, token.end
                for each in range(row - 1, last):
                    whole = len(lines[each].rstrip("\n"))
                    found.append(
                        (each, start if each == row - 1 else 0, end if each == last - 1 else whole)
                    )
            if token.type not in _BLANK:
                begins = token.type == tokenize.NEWLINE
    except (tokenize.TokenError, SyntaxError):  # a lambda in the middle of an expression
        pass
    return found


_BLANK = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT)
