"""Python state that a traced program changes beside what it returns.

A graph computes tensors; it cannot append to a list of the program's or count in a dictionary. Such
a change would happen once for each way that is traced, and never when the graph runs.
"""

import enum
import functools
import inspect
import re
import sys
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
from calque.trace.variables import MISSING, outside

_CONTAINERS = (MutableMapping, MutableSequence, MutableSet)
_NUMBERS = (int, float, complex)
_SCALARS = (*_NUMBERS, str, bool)
_OWN = frozenset(vars(torch.nn.Module()))
_DEEPEST = 3
_LONGEST = 1000
_MOST = 5000
_LIBRARIES = frozenset(("torch", "numpy", "jax", "jaxlib", "calque", *sys.stdlib_module_names))
_CHANGE = (
    r"(\[.*\]\s*[-+*/|&@%]*=(?!=)|\s*[-+*/|&@%]+=|\.(append|appendleft|extend|insert|pop|popleft|"
    r"popitem|update|setdefault|add|remove|discard|clear|sort|reverse)\()"
)


class _Seen(NamedTuple):
    """A container as it was, or the attributes of an object."""

    name: str
    container: Any
    copied: Any
    kind: type | None  # that of the object


class _Variable(NamedTuple):
    """What a name outside of the program meant."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None]
    before: Any


class Watch:
    """What the program could change, as it was before a run.

    Args:
        root: the module or function that is traced.
        method: the method that is traced, of a module.
    """

    def __init__(self, root: Any, method: str) -> None:
        self._functions = list(_functions(root, method))
        self._seen: list[_Seen] = []
        self._variables: list[_Variable] = []
        known: set[int] = set()
        if isinstance(root, torch.nn.Module):
            for path, module in root.named_modules():
                self._look(type(module).__name__, type(module), known, 0)
                for name, value in vars(module).items():
                    if name not in _OWN:
                        whole = ".".join(filter(None, ("self", path, name)))
                        self._look(whole, value, known, _DEEPEST)
        for function in self._functions:
            self._look(function.__name__, function, known, 0)
            for name, read, write in outside(function):
                value = read()
                self._variables.append(_Variable(name, read, write, value))
                self._look(name, value, known, _DEEPEST)

    def _look(self, name: str, value: Any, known: set[int], depth: int) -> None:
        if id(value) in known or len(known) > _MOST or isinstance(value, torch.nn.Module):
            return
        if isinstance(value, type):
            if _is_program(value):
                self._look_at_class(value, known)
            return
        if isinstance(value, _CONTAINERS):
            self._look_into(name, value, known, depth, None)
        elif _is_program(type(value)) or isinstance(value, FunctionType):
            self._look_into(name, getattr(value, "__dict__", {}), known, depth, type(value))

    def _look_into(
        self, name: str, value: Any, known: set[int], depth: int, kind: type | None
    ) -> None:
        if id(value) in known or len(value) > _LONGEST:
            return
        known.add(id(value))
        pairs = isinstance(value, MutableMapping)
        self._seen.append(_Seen(name, value, dict(value) if pairs else list(value), kind))
        if depth:
            for part in list(value.values() if pairs else value):
                self._look(name, part, known, depth - 1)

    def _look_at_class(self, kind: type, known: set[int]) -> None:
        if id(kind) in known:
            return
        known.add(id(kind))
        for name, value in list(vars(kind).items()):
            if not name.startswith("__") and not callable(value):
                whole, read = f"{kind.__name__}.{name}", functools.partial(getattr, kind, name)
                write = functools.partial(setattr, kind, name)
                if isinstance(value, (*_SCALARS, type(None))):
                    self._variables.append(_Variable(whole, read, write, value))
                self._look(whole, value, known, 1)

    def check(self) -> None:
        """Refuse what was changed, and change it back.

        Raises:
            TraceError: a container or a number outside of the program is not as it was.
        """
        changes = list(self._changes())
        if changes:
            self.restore()
            raise self._refusal(*changes[0])

    def restore(self) -> None:
        """Change back what was changed."""
        for variable in self._variables:
            if _is_changed(variable):
                variable.write(variable.before)
        for seen in self._seen:
            if _change(seen) is not None:
                _restore(seen.container, seen.copied)

    def _changes(self) -> Iterator[tuple[str, str, str]]:
        """Each name whose value is not as it was, the part of it that is not, and what happened."""
        for variable in self._variables:
            if _is_changed(variable):
                before, now = variable.before, _spoken(variable.read())
                yield variable.name, "", f"changes from {_spoken(before)} to {now}"
        for seen in self._seen:
            change = _change(seen)
            if change is not None and seen.kind is not None:
                yield f"{seen.name}.{change[0]}", "", change[1]
            elif change is not None:
                part = "" if change[0] is None else f"[{change[0]!r}]"
                yield seen.name, part, change[1]

    def _refusal(self, name: str, part: str, change: str) -> SymbolicTraceError:
        place = self._place(name)
        return SymbolicTraceError(
            f"{place}{name}{part} {change}; a graph computes tensors, and would not repeat that.\n"
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


def _is_program(kind: type) -> bool:
    """Whether a class is the program's own, and not a tensor, a module or some library's."""
    home = (kind.__module__ or "").partition(".")[0]
    return home not in _LIBRARIES and not issubclass(kind, (torch.Tensor, enum.Enum))


def _is_changed(variable: _Variable) -> bool:
    now, before = variable.read(), variable.before
    if now is before:
        return False
    if isinstance(before, _SCALARS):
        return type(now) is not type(before) or bool(now != before)
    return has_proxy((now,))


def _change(seen: _Seen) -> tuple[Any, str] | None:
    """What happened to a container that a graph would not repeat, and under which key of it.

    A dictionary or a set that gets a new member which is no part of the trace is taken for a cache.
    """
    container, before = seen.container, seen.copied
    if isinstance(container, MutableMapping):
        gone = [key for key in before if key not in container]
        if gone:
            return gone[0], "is deleted"
        for key, value in container.items():
            if has_proxy((value,)):
                return key, "gets a value of the traced program"
            if key in before and value is not before[key] and isinstance(value, _SCALARS):
                if value != before[key]:
                    return key, f"changes from {_spoken(before[key])} to {value!r}"
            if key not in before and seen.kind is not None and isinstance(value, _NUMBERS):
                if seen.kind is FunctionType or hasattr(seen.kind, key):
                    return key, f"becomes {value!r}"
        return None
    if isinstance(container, MutableSet):
        if has_proxy(container):
            return None, "gets a value of the traced program"
        lost = any(member not in container for member in before)
        return (None, "loses a member") if lost else None
    now = list(container)
    if has_proxy(now):
        return None, "gets a value of the traced program"
    if len(now) != len(before):
        return None, f"changes in length from {len(before)} to {len(now)}"
    same = all(a is b or (isinstance(a, _SCALARS) and a == b) for a, b in zip(now, before))
    return None if same else (None, "has its members changed")


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
            _follow([read() for _, read, _ in outside(function)], found, depth - 1)


def _spoken(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    return "a value of the traced program" if has_proxy((value,)) else repr(value)
