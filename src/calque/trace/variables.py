"""The variables outside of a function that it uses: of its closure, and its module's globals."""

from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

from calque.trace.changes import MISSING

Variable = tuple[str, Callable[[], Any], Callable[[Any], None]]


def outside(function: FunctionType) -> Iterator[Variable]:
    """The name of each variable, what reads it, and what sets it.

    A default argument counts as one, which cannot be set.
    """
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        yield name, lambda cell=cell: _read(cell), lambda value, cell=cell: _write(cell, value)
    names = function.__globals__
    for name in dict.fromkeys(_global_names(code)):
        yield (
            name,
            lambda name=name: names.get(name, MISSING),
            lambda value, name=name: _set(names, name, value),
        )
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for value in defaults:
        yield "a default argument", lambda value=value: value, lambda value: None


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _set(names: dict[str, Any], name: str, value: Any) -> None:
    if value is MISSING:
        names.pop(name, None)
    else:
        names[name] = value


def _read(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _write(cell: CellType, value: Any) -> None:
    if value is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value
