"""Python state that a traced program changes beside what it returns.

A graph computes tensors; it cannot append to a list of the program's or count in a dictionary. Such
a change would happen once for each way that is traced, and never when the graph runs.
"""

import inspect
import re
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    MutableMapping,
    MutableSequence,
    MutableSet,
)
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch

from calque.trace.errors import SymbolicTraceError
from calque.trace.proxy import has_proxy

_CONTAINERS = (MutableMapping, MutableSequence, MutableSet)
_SCALARS = (int, float, complex, str, bool)
_OWN = frozenset(vars(torch.nn.Module()))
_DEEPEST = 3
_LONGEST = 1000
_CHANGE = (
    r"(\[.*\]\s*[-+*/|&@%]*=(?!=)|\s*[-+*/|&@%]+=|\.(append|appendleft|extend|insert|pop|popleft|"
    r"popitem|update|setdefault|add|remove|discard|clear|sort|reverse)\()"
)


class _Seen(NamedTuple):
    name: str
    container: Any
    copied: Any


class Watch:
    """What the program could change, as it was before a run.

    Args:
        root: the module or function that is traced.
        method: the method that is traced, of a module.
    """

    def __init__(self, root: Any, method: str) -> None:
        self._functions = list(_functions(root, method))
        self._seen: list[_Seen] = []
        self._cells: list[tuple[str, Callable[[], Any], Any]] = []
        known: set[int] = set()
        if isinstance(root, torch.nn.Module):
            for path, module in root.named_modules():
                for name, value in vars(module).items():
                    if name not in _OWN:
                        whole = ".".join(filter(None, ("self", path, name)))
                        self._look(whole, value, known, _DEEPEST)
        for function in self._functions:
            for name, read in _outside(function):
                value = read()
                if isinstance(value, _SCALARS):
                    self._cells.append((name, read, value))
                self._look(name, value, known, _DEEPEST)

    def _look(self, name: str, value: Any, known: set[int], depth: int) -> None:
        if not isinstance(value, _CONTAINERS) or id(value) in known or isinstance(value, _MODULES):
            return
        if len(value) > _LONGEST:
            return
        known.add(id(value))
        pairs = isinstance(value, MutableMapping)
        self._seen.append(_Seen(name, value, dict(value) if pairs else list(value)))
        if depth:
            for part in list(value.values() if pairs else value):
                self._look(name, part, known, depth - 1)

    def check(self) -> None:
        """Refuse what was changed, and change it back.

        Raises:
            TraceError: a container or a number outside of the program is not as it was.
        """
        for name, read, before in self._cells:
            now = read()
            if now is not before and (type(now) is not type(before) or now != before):
                raise self._refusal(name, f"changes from {before!r} to {_spoken(now)}")
        for seen in self._seen:
            change = _change(seen.container, seen.copied)
            if change is not None:
                _restore(seen.container, seen.copied)
                raise self._refusal(seen.name, change)

    def _refusal(self, name: str, change: str) -> SymbolicTraceError:
        place = self._place(name)
        return SymbolicTraceError(
            f"{place}{name} {change}; a graph computes tensors, and would not repeat that.\n"
            "Return the value instead and let the caller keep it, or keep a tensor in a buffer and "
            "write into it."
        )

    def _place(self, name: str) -> str:
        """The line that changes what has this name, as well as the source shows it."""
        last = name.rpartition(".")[2]
        pattern = re.compile(rf"\b{re.escape(last)}{_CHANGE}")
        for function in self._functions:
            code = function.__code__
            try:
                lines, first = inspect.getsourcelines(code)
            except (OSError, TypeError):
                continue
            for number, line in enumerate(lines):
                if pattern.search(line):
                    return f"{code.co_filename}:{first + number} in {code.co_name}: "
        code = self._functions[0].__code__ if self._functions else None
        return f"{code.co_filename} in {code.co_name}: " if code is not None else ""


_MODULES = (torch.nn.Module,)


def _change(container: Any, before: Any) -> str | None:
    """What happened to a container that a graph would not repeat; None where nothing did.

    A dictionary or a set that gets a new member which is no part of the trace is taken for a cache.
    """
    if isinstance(container, MutableMapping):
        gone = [key for key in before if key not in container]
        if gone:
            return f"loses the key {gone[0]!r}"
        for key, value in container.items():
            if has_proxy((value,)):
                return f"gets a value of the traced program, under the key {key!r}"
            if key in before and value is not before[key] and isinstance(value, _SCALARS):
                if value != before[key]:
                    return f"changes from {before[key]!r} to {value!r}, under the key {key!r}"
        return None
    if isinstance(container, MutableSet):
        if has_proxy(container):
            return "gets a value of the traced program"
        return "loses a member" if any(member not in container for member in before) else None
    now = list(container)
    if has_proxy(now):
        return "gets a value of the traced program"
    if len(now) != len(before):
        return f"changes in length from {len(before)} to {len(now)}"
    same = all(a is b or (isinstance(a, _SCALARS) and a == b) for a, b in zip(now, before))
    return None if same else "has its members changed"


def _restore(container: Any, before: Any) -> None:
    container.clear()
    if isinstance(container, MutableMapping):
        container.update(before)
    elif isinstance(container, MutableSet):
        for member in before:
            container.add(member)
    else:
        container.extend(before)


def _functions(root: Any, method: str) -> Iterator[FunctionType]:
    """The functions of the program that are known before it runs."""
    starts: list[Any] = [root]
    if isinstance(root, torch.nn.Module):
        starts = [getattr(type(root), method, None)]
        for kind in dict.fromkeys(map(type, root.modules())):
            if not kind.__module__.startswith("torch."):
                starts += list(vars(kind).values())
    found: dict[CodeType, FunctionType] = {}
    _follow(starts, found, _DEEPEST)
    return iter(found.values())


def _follow(values: Iterable[Any], found: dict[CodeType, FunctionType], depth: int) -> None:
    for value in values:
        function = inspect.unwrap(value) if callable(value) else value
        if not isinstance(function, FunctionType) or function.__code__ in found:
            continue
        if function.__module__ is None or function.__module__.partition(".")[0] == "torch":
            continue
        found[function.__code__] = function
        if depth:
            _follow([read() for _, read in _outside(function)], found, depth - 1)


def _outside(function: FunctionType) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The names from outside that a function uses, and what reads each."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        yield name, lambda cell=cell: _contents(cell)
    names = function.__globals__
    for name in _global_names(code):
        if name in names:
            yield name, lambda name=name: names.get(name)
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for value in defaults:
        yield "a default argument", lambda value=value: value


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return None


def _spoken(value: Any) -> str:
    return "a value of the traced program" if has_proxy((value,)) else repr(value)
