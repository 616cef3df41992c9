"""Loops whose condition depends on a tensor, and the `torch.while_loop` to write instead."""

import ast
import textwrap
from types import FrameType
from typing import NamedTuple

from calque.tracing.core.statements import Place, encloses, extent, running

_LONGEST_BODY = 4


class WhileLoop(NamedTuple):
    """A `while` statement of the program.

    Attributes:
        condition: the source of its condition.
        remedy: the code to write instead.
    """

    condition: str
    remedy: str


def while_loop(frame: FrameType) -> WhileLoop | None:
    """Returns the `while` statement whose condition the frame evaluates; None if there is none."""
    found = _statement(frame)
    if found is None:
        return None
    condition = ast.unparse(found.test)
    return WhileLoop(condition, _rewritten(found, _local_names(frame)))


def _statement(frame: FrameType) -> ast.While | None:
    """Returns the innermost `while` statement whose condition is at the running position."""
    found = running(frame)
    if found is None:
        return None
    tree, place = found
    within = [node for node in ast.walk(tree) if isinstance(node, ast.While) and _asks(node, place)]
    return within[-1] if within else None


def _asks(loop: ast.While, place: Place) -> bool:
    """Returns True if the position is the condition, or the loop's jump."""
    return encloses(extent(loop.test), place) or place == extent(loop)


def _local_names(frame: FrameType) -> frozenset[str]:
    code = frame.f_code
    return frozenset((*code.co_varnames, *code.co_cellvars))


def _rewritten(loop: ast.While, local: frozenset[str]) -> str:
    uses = _Uses()
    uses.visit(loop)
    changed = [name for name in uses.stored if name in local and name in uses.read_first] or ["x"]
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


class _Uses(ast.NodeVisitor):
    """The names that a loop stores, and the names that it reads before it stores them."""

    def __init__(self) -> None:
        self.stored: dict[str, None] = {}
        self.read_first: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.stored[node.id] = None
        elif node.id not in self.stored:
            self.read_first.add(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        for part in (node.value, *node.targets):
            self.visit(part)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.visit(ast.Name(node.target.id, ast.Load()))
        self.visit(node.value)
        self.visit(node.target)


class _OfTensors(ast.NodeTransformer):
    """Replaces `and`, `or` and `not`, which need truth values, with functions of tensors."""

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
