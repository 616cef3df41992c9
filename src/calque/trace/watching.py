"""Python state that a traced program changes beside what it returns.

A graph computes tensors; it cannot append to a list of the program's or count in a dictionary. Such
a change would happen once for each way that is traced, and never when the graph runs.
"""

import enum
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch

from calque.trace.changes import MISSING, SCALARS, Change, is_same, spoken
from calque.trace.containers import Seen, is_container
from calque.trace.errors import SymbolicTraceError
from calque.trace.proxy import has_proxy
from calque.trace.variables import outside

_OWN = frozenset(vars(torch.nn.Module()))
_DEEPEST = 3
_LONGEST = 1000
_MOST = 5000
_LIBRARIES = frozenset(("torch", "numpy", "jax", "jaxlib", "calque", *sys.stdlib_module_names))
_CHANGE = (
    r"(\[.*\]\s*[-+*/|&@%]*=(?!=)|\s*[-+*/|&@%]+=|\.(append|appendleft|extend|insert|pop|popleft|"
    r"popitem|update|setdefault|add|remove|discard|clear|sort|reverse)\()"
)


class _Variable(NamedTuple):
    """What a name outside of the program meant."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None]
    before: Any

    def is_changed(self) -> bool:
        """Whether it means something that a graph would have to repeat."""
        now, before = self.read(), self.before
        if now is before or (before is MISSING and not has_proxy((now,))):
            return False
        if isinstance(before, SCALARS) or (before is None and isinstance(now, SCALARS)):
            return not is_same(now, before)
        return has_proxy((now,))


class Watch:
    """What the program could change, as it was before a run.

    Args:
        root: the module or function that is traced.
        method: the method that is traced, of a module.
    """

    def __init__(self, root: Any, method: str) -> None:
        self._functions = list(_functions(root, method))
        self._seen: list[Seen] = []
        self._variables: list[_Variable] = []
        self._caches: list[tuple[Any, int]] = []
        self._known: set[int] = set()
        if isinstance(root, torch.nn.Module):
            for path, module in root.named_modules():
                self._look(type(module).__name__, type(module), 0)
                for name, value in vars(module).items():
                    if name not in _OWN:
                        whole = ".".join(filter(None, ("self", path, name)))
                        self._look(whole, value, _DEEPEST)
        for function in self._functions:
            self._look(function.__name__, function, 0)
            for name, read, write in outside(function):
                value = read()
                self._variables.append(_Variable(name, read, write, value))
                self._look(name, value, _DEEPEST)

    def _look(self, name: str, value: Any, depth: int) -> None:
        if id(value) in self._known or len(self._known) > _MOST:
            return
        if isinstance(value, functools._lru_cache_wrapper):
            self._known.add(id(value))
            self._caches.append((value, value.cache_info().misses))
        elif isinstance(value, type):
            self._look_at_class(value)
        elif is_container(value) and not isinstance(value, torch.nn.Module):
            self._look_into(name, value, depth, None)
        elif _is_program(type(value)) or isinstance(value, FunctionType):
            self._look_into(name, getattr(value, "__dict__", {}), depth, type(value))

    def _look_into(self, name: str, value: Any, depth: int, kind: type | None) -> None:
        if id(value) in self._known or len(value) > _LONGEST:
            return
        self._known.add(id(value))
        self._seen.append(Seen(name, value, kind))
        if depth:
            for key, part in list(value.items() if hasattr(value, "items") else enumerate(value)):
                inner = f"{name}.{key}" if kind is not None else f"{name}[{key!r}]"
                self._look(inner, part, depth - 1)

    def _look_at_class(self, kind: type) -> None:
        if not _is_program(kind, modules=True):
            return
        self._known.add(id(kind))
        for name, value in list(vars(kind).items()):
            if name.startswith("__") or isinstance(value, FunctionType):
                continue
            whole, read = f"{kind.__name__}.{name}", functools.partial(getattr, kind, name)
            if isinstance(value, (*SCALARS, type(None))):
                write = functools.partial(setattr, kind, name)
                self._variables.append(_Variable(whole, read, write, value))
            self._look(whole, value, 1)

    def leave(self) -> list[Change]:
        """Change back what was changed; returns the numbers and the like that were.

        Raises:
            TraceError: something else was changed.
        """
        changes: list[Change] = []
        refused: Change | None = None
        for change, may_stay in self._changes():
            if may_stay:
                changes.append(change)
            else:
                refused = refused or change
        self.restore()
        if refused is not None:
            raise refusal(refused)
        return changes

    def restore(self) -> None:
        """Change back what was changed."""
        for variable in self._variables:
            if variable.is_changed():
                variable.write(variable.before)
        for seen in self._seen:
            if any(True for _ in seen.changed()):
                seen.restore()
        for cache, misses in self._caches:
            if cache.cache_info().misses != misses:
                cache.cache_clear()  # it may hold values of the trace

    def _changes(self) -> Iterator[tuple[Change, bool]]:
        """Each name that means something else, and whether it is a number or the like."""
        for variable in self._variables:
            if variable.is_changed():
                name, before, now = variable.name, variable.before, variable.read()
                what = f"changes from {spoken(before)} to {spoken(now)}"
                change = Change(name, name, what, self._place(name), before, now, variable.write)
                yield change, isinstance(now, SCALARS)
        for seen in self._seen:
            for part in seen.changed():
                name, write = seen.name_of(part), functools.partial(seen.write, part.key)
                place = self._place(name if seen.kind is not None else seen.name)
                before = seen.before(part.key)
                yield Change(name, name, part.what, place, before, part.after, write), part.may_stay

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


def refusal(change: Change) -> SymbolicTraceError:
    """The error for a change that a graph would not make."""
    return SymbolicTraceError(
        f"{change.place}{change.name} {change.what}; a graph computes tensors, and would not "
        "repeat that.\nReturn the value instead and let the caller keep it, or keep a tensor in a "
        "buffer and write into it. What is done in the first call only: call it once, then trace."
    )


def _is_program(kind: type, modules: bool = False) -> bool:
    """Whether a class is the program's own, and not a tensor, a module or some library's."""
    home = (kind.__module__ or "").partition(".")[0]
    others = (torch.Tensor, enum.Enum) if modules else (torch.Tensor, enum.Enum, torch.nn.Module)
    return home not in _LIBRARIES and not issubclass(kind, others)


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
        for function in _unwrapped(value):
            if function.__code__ in found or (function.__module__ or "torch").startswith("torch."):
                continue
            found[function.__code__] = function
            if depth:
                _follow([read() for _, read, _ in outside(function)], found, depth - 1)


def _unwrapped(value: Any) -> Iterator[FunctionType]:
    """A function, and those that it decorates."""
    while callable(value):
        if isinstance(value, FunctionType):
            yield value
        value = getattr(value, "__wrapped__", None) if not isinstance(value, type) else None
