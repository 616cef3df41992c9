"""Finds the running statements of the program in its source."""

import ast
import dis
import functools
import inspect
import linecache
import textwrap
from types import CodeType, FrameType

Place = tuple[tuple[int, int], tuple[int, int]]


def running(frame: FrameType) -> tuple[ast.Module, Place] | None:
    """Returns the syntax tree of a frame's function, and the running instruction's place in it.

    None where there is no source.
    """
    positions, (tree, line, column) = _positions(frame), _parsed(frame.f_code)
    if tree is None or positions is None:
        return None
    first, last = ((row - line, at - column) for row, at in positions)
    return tree, (first, last)


def raises(frame: FrameType) -> bool:
    """Returns True if a `raise` statement is running, including the evaluation of its message."""
    found = running(frame)
    if found is None:
        return False
    tree, place = found
    return any(
        isinstance(node, ast.Raise) and encloses(extent(node), place) for node in ast.walk(tree)
    )


def encloses(outer: Place, inner: Place) -> bool:
    """Returns True if one piece of source is a part of another."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def extent(node: ast.stmt | ast.expr) -> Place:
    """Returns where a piece of syntax begins and ends."""
    end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
    return (node.lineno, node.col_offset), end


def _positions(frame: FrameType) -> Place | None:
    for step in dis.get_instructions(frame.f_code):
        if step.offset == frame.f_lasti and step.positions is not None:
            place = step.positions
            if None in place:
                return None
            return (place.lineno, place.col_offset), (place.end_lineno, place.end_col_offset)  # pyright: ignore[reportReturnType]
    return None


@functools.lru_cache(maxsize=64)
def _parsed(code: CodeType) -> tuple[ast.Module | None, int, int]:
    """Returns the syntax tree of a function's source,
    and the offsets of its lines and columns in the file.
    """
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError):
        return None, 0, 0
    except SyntaxError:  # a lambda inside an expression; parse the whole file
        return _parsed_file(code.co_filename), 0, 0
    return tree, max(first - 1, 0), len(lines[0]) - len(lines[0].lstrip())


@functools.lru_cache(maxsize=8)
def _parsed_file(name: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(name)))
    except SyntaxError:
        return None
