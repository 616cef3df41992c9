"""Finds the source from which a function was compiled."""

import ast
import inspect
import linecache
from functools import lru_cache
from types import CodeType


def body_of(code: CodeType) -> list[ast.stmt] | None:
    """Returns the statements of a function; None if its source is missing or has changed."""
    source = _source(code)
    parsed = _parsed(source)
    compiled = _compiled(source) if parsed is not None else {}
    known = compiled.get((code.co_name, code.co_firstlineno))
    if parsed is None or known is None or not _alike(known, code):
        return None
    found = [node for node in ast.walk(parsed) if _is_of(node, code)]
    if len(found) != 1:
        return None
    node = found[0]
    if isinstance(node, ast.Lambda):
        return [ast.copy_location(ast.Return(node.body), node.body)]
    return node.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


def _source(code: CodeType) -> str:
    """Returns the source of a function's file, or of the function alone if its file has other
    contents.
    """
    lines = linecache.getlines(code.co_filename)
    whole = "".join(lines)
    if _parsed(whole) is not None:
        return whole
    first = code.co_firstlineno - 1
    return "\n" * first + "".join(inspect.getblock(lines[first:]))


def _is_of(node: ast.AST, code: CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name != code.co_name:
        return False
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return first == code.co_firstlineno


@lru_cache(maxsize=32)
def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


@lru_cache(maxsize=32)
def _compiled(source: str) -> dict[tuple[str, int], CodeType | None]:
    """Returns the functions in a source, by name and first line; None for ambiguous ones."""
    found: dict[tuple[str, int], CodeType | None] = {}

    def collect(code: CodeType) -> None:
        for part in code.co_consts:
            if isinstance(part, CodeType):
                key = part.co_name, part.co_firstlineno
                found[key] = None if key in found else part
                collect(part)

    try:
        collect(compile(source, "", "exec", dont_inherit=True))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return found


def _alike(a: CodeType, b: CodeType) -> bool:
    """Returns True if the function was compiled from the current source."""
    same = ("co_names", "co_varnames", "co_cellvars", "co_freevars")
    if any(getattr(a, name) != getattr(b, name) for name in same):
        return False
    # Compare no instructions: those of `torch.ones()` depend on whether the file imports `torch`.
    if set(a.co_positions()) != set(b.co_positions()):
        return False
    plain = [[repr(c) for c in x.co_consts if not isinstance(c, CodeType)] for x in (a, b)]
    return plain[0] == plain[1]
