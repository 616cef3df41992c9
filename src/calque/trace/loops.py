"""Loops that end when a tensor says so, and the `torch.while_loop` to write in their place."""

import ast
import dis
import functools
import inspect
import textwrap
from types import CodeType, FrameType
from typing import NamedTuple

_LONGEST_BODY = 4


class WhileLoop(NamedTuple):
    """A `while` statement of the program.

    Attributes:
        condition: its source.
        remedy: what to write instead, some lines of Python.
    """

    condition: str
    remedy: str


def while_loop(frame: FrameType) -> WhileLoop | None:
    """The `while` statement whose condition the frame asks a value for; None where it is none."""
    found = _statement(frame)
    if found is None:
        return None
    condition = ast.unparse(found.test)
    return WhileLoop(condition, _rewritten(found, _local_names(frame)))


def _statement(frame: FrameType) -> ast.While | None:
    """The innermost `while` whose condition asks, found by its place in the source."""
    positions, (tree, line, column) = _positions(frame), _parsed(frame.f_code)
    if tree is None or positions is None:
        return None
    first, last = ((row - line, at - column) for row, at in positions)
    within = [
        node for node in ast.walk(tree) if isinstance(node, ast.While) and _asks(node, first, last)
    ]
    return within[-1] if within else None


def _positions(frame: FrameType) -> tuple[tuple[int, int], tuple[int, int]] | None:
    for step in dis.get_instructions(frame.f_code):
        if step.offset == frame.f_lasti and step.positions is not None:
            place = step.positions
            if None in place:
                return None
            return (place.lineno, place.col_offset), (place.end_lineno, place.end_col_offset)  # pyright: ignore[reportReturnType]
    return None


def _asks(loop: ast.While, first: tuple[int, int], last: tuple[int, int]) -> bool:
    """Whether what stands there is the condition, or the jump that Python gives the whole loop."""
    begin, end = _extent(loop.test)
    return (begin <= first and last <= end) or (first, last) == _extent(loop)


def _extent(node: ast.stmt | ast.expr) -> tuple[tuple[int, int], tuple[int, int]]:
    end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
    return (node.lineno, node.col_offset), end


@functools.lru_cache(maxsize=64)
def _parsed(code: CodeType) -> tuple[ast.Module | None, int, int]:
    """The syntax of a function's source, and what its lines and columns lack to the file's."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None, 0, 0
    return tree, max(first - 1, 0), len(lines[0]) - len(lines[0].lstrip())


def _local_names(frame: FrameType) -> frozenset[str]:
    code = frame.f_code
    return frozenset((*code.co_varnames, *code.co_cellvars))


def _rewritten(loop: ast.While, local: frozenset[str]) -> str:
    names = [node for node in ast.walk(loop) if isinstance(node, ast.Name) and node.id in local]
    stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    changed = list(dict.fromkeys(node.id for node in names if node.id in stored)) or ["x"]
    carried = ", ".join(changed)
    body = "\n".join(map(ast.unparse, loop.body))
    if body.count("\n") >= _LONGEST_BODY:
        body = "...  # the body of the loop"
    comma = "," if len(changed) == 1 else ""
    result = f"{changed[0]}.clone()" if body == "pass" else carried
    lines = [
        f"def body({carried}):",
        textwrap.indent(body, "    "),
        f"    return {result}{comma}",
    ]
    test = f"lambda {carried}: {_of_tensors(loop.test)}"
    call = f"{carried}{comma} = torch.while_loop({test}, body, ({carried}{comma}))"
    return "\n".join([*lines, call])


class _OfTensors(ast.NodeTransformer):
    """`and`, `or` and `not`, which ask for a truth, become functions of tensors."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        first, *rest = (self.visit(value) for value in node.values)
        for value in rest:
            first = _call(name, first, value)
        return first

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        operand = self.visit(node.operand)
        return _call("logical_not", operand) if isinstance(node.op, ast.Not) else node


def _call(name: str, *args: ast.expr) -> ast.expr:
    function = ast.Attribute(ast.Name("torch", ast.Load()), name, ast.Load())
    return ast.Call(function, list(args), [])


def _of_tensors(test: ast.expr) -> str:
    return ast.unparse(_OfTensors().visit(ast.parse(ast.unparse(test), mode="eval").body))
