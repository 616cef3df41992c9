"""Compares the texts of two lowered programs, ignoring the names of inner functions.

JAX numbers functions of the same name, and lowers a function twice if it was traced twice, so the
text of the same program differs after JAX's caches were cleared. So calls are compared by the text
of the called function.
"""

import hashlib
import re

_HEADER = re.compile(r"^  func\.func (?:public|private) @(\"[^\"]+\"|[\w.$-]+)")
_NAME = re.compile(r"@(\"[^\"]+\"|[\w.$-]+)")
_DIGEST = re.compile(r"#[0-9a-f]{16}")
_NUMBER = re.compile(r"_\d+$")
_MAIN = "main"


class ProgramText:
    """The functions of a program's text, in MLIR.

    Args:
        text: the text of a lowered program.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[str, list[str]] = {"": []}
        name = ""
        for line in text.splitlines():
            if (header := _HEADER.match(line)) is not None:
                name = header[1]
            self._lines.setdefault(name, []).append(line)
        self._known: dict[str, list[str]] = {}

    def of(self, name: str) -> list[str]:
        """Returns the lines of a function, in which called functions are named by their content."""
        if name not in self._known:
            self._known[name] = [_NAME.sub(self._content, line) for line in self._own(name)]
        return self._known[name]

    def _own(self, name: str) -> list[str]:
        lines = self._lines.get(name, [])
        return [*(line.replace(f"@{name}", "", 1) for line in lines[:1]), *lines[1:]]

    def _content(self, found: re.Match[str]) -> str:
        name = found[1]
        if name not in self._lines:
            return found[0]  # for example the target of a custom call
        digest = hashlib.sha256("\n".join(self.of(name)).encode()).hexdigest()[:16]
        return f"@{_NUMBER.sub('', name)}#{digest}"

    def called(self, name: str, line: int) -> list[str]:
        """Returns the functions to which a line of a function refers."""
        return [one for one in _NAME.findall(self._own(name)[line]) if one in self._lines]


def difference(before: str, now: str) -> tuple[str, str] | None:
    """Returns the first lines in which two programs differ; None if they are the same."""
    if before == now:
        return None
    one, other = ProgramText(before), ProgramText(now)
    return _difference(one, other, "", "") or _difference(one, other, _MAIN, _MAIN)


def _difference(one: ProgramText, other: ProgramText, a: str, b: str) -> tuple[str, str] | None:
    lines, others = one.of(a), other.of(b)
    for index, (first, second) in enumerate(zip(lines, others)):
        if first == second:
            continue
        shown = _DIGEST.sub("", first), _DIGEST.sub("", second)
        if shown[0] != shown[1]:
            return shown
        for pair in zip(one.called(a, index), other.called(b, index)):
            if (found := _difference(one, other, *pair)) is not None:
                return found
        return shown
    if len(lines) != len(others):
        longer = lines if len(lines) > len(others) else others
        line = _DIGEST.sub("", longer[min(len(lines), len(others))])
        return (line, "nothing") if longer is lines else ("nothing", line)
    return None
