"""Digests of Python code that ignore files, lines, comments and docstrings."""

import dis
import hashlib
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

Names = frozenset[str]

_SIGNATURE = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR


def names_of_code(code: CodeType) -> Names:
    """Returns the names of globals, attributes and keys in code and its nested functions."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= names_of_code(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            found.add(constant)
    return frozenset(found)


def digest_of_code(code: CodeType) -> str:
    """Returns a digest of what code does: pieces of code that do different things have different
    digests.

    It ignores names of local variables, docstrings and source positions. It may depend on the
    version of Python, which may compile the same text differently.
    """
    found = hashlib.sha256()
    for part in _parts(code):
        found.update(part.encode())
    return found.hexdigest()[:12]


def _parts(code: CodeType) -> Iterator[str]:
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    yield f"{counts} {code.co_flags & _SIGNATURE}\n"
    for step in dis.get_instructions(code):
        by_name = step.opcode in dis.hasname
        means: Any = step.argval if by_name else step.arg
        yield f"{step.opname} {_constant(step.argval) if step.opcode in dis.hasconst else means}\n"


def _constant(value: object) -> str:
    """Returns a constant of code as text, with sets in sorted order."""
    if isinstance(value, CodeType):
        return digest_of_code(value)
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return repr(value)
