"""Remedies for code that needs a value in a trace.

The remedy differs between a `while`, an `if`, a line that logs a loss, and a copy to the CPU. The
source of the line that reads the value decides.
"""

import ast
import os
import sys
import textwrap
from types import FrameType

import torch

from calque.errors.frames import user_frame
from calque.tracing.core.statements import Place, encloses, extent, running
from calque.tracing.paths.while_loops import while_loop

_BRANCH = (
    "Use torch.where(condition, a, b), which computes both, or torch.cond, which computes one, "
    "in place of the {}."
)
_RETURN = (
    "Return it from the function and {} there, on what the call gives; inside, compute with the "
    "tensor."
)
_SHOWN = "Return it from the function, and print or log it outside (`print(x)` shows its shape)."
_LOOP = "Write the loop as torch.while_loop, with tensors for all that changes:\n{}"
_COMPUTES = (
    "Keep it a tensor and compute with that, return it, or use calque.jit(fn, specialize=True), "
    "which compiles a program for each value."
)
MASK = (
    "Keep the shape: torch.where(mask, x, 0) in place of x[mask], a sum of the mask in place of a "
    "count of nonzero(); or calque.jit(fn, specialize=True), a program for each number of elements."
)
_LOGGING = ("print", "log", "info", "debug", "warning", "error", "write", "append", "add_scalar")
_BUILTINS = {
    "max": "torch.maximum(a, b), or x.max()",
    "min": "torch.minimum(a, b), or x.min()",
    "sorted": "torch.sort(x).values",
    "round": "torch.round(x)",
    "any": "x.any()",
    "all": "x.all()",
    "range": "torch.while_loop, or pass the number of iterations as a Python number, which is "
    "compiled in",
}
_OF_TENSORS = "Use the function of tensors in place of Python's {}(): {}."
_SIZE = (
    "A program has fixed sizes: pass the size as a Python number (each value is a program of its "
    "own), or use the largest size and mask what is beyond."
)
_MAKES_SHAPES = frozenset(
    (
        *("arange", "broadcast_to", "empty", "expand", "eye", "full", "linspace", "new_empty"),
        *("new_full", "new_ones", "new_zeros", "ones", "rand", "randint", "randn", "randperm"),
        *("repeat", "reshape", "tile", "unflatten", "view", "zeros"),
    )
)
_LOADER = (
    "Iterate over the DataLoader outside the jitted function, and jit what is done with a batch."
)
_DATA = os.path.dirname(os.path.abspath(torch.utils.data.__file__)) + os.sep
_DESCRIPTIONS = {
    ast.If: "`if`",
    ast.IfExp: "`if`",
    ast.Assert: "`assert`",
    ast.BoolOp: "`and`/`or`",
}


def of_copy(frame: FrameType) -> str:
    """Returns the remedy for a copy to the CPU (`cpu()`, `numpy()`, `tolist()`)."""
    name = next((n for n in _called(frame) if n in ("cpu", "tolist", "numpy")), None)
    return _RETURN.format(f"call .{name}()" if name else "look at it")


def of_number(frame: FrameType) -> str:
    """Returns the remedy for a number or truth value that Python needs."""
    loop = while_loop(frame)
    if loop is not None:
        return _LOOP.format(textwrap.indent(loop.remedy, "    "))
    for node in reversed(_around(frame)):
        if isinstance(node, ast.FormattedValue) or _logs(node):
            return _SHOWN
        kind = _DESCRIPTIONS.get(type(node))
        if kind is not None and _decides(node, frame):
            return _BRANCH.format(kind)
        if isinstance(node, ast.Call) and (remedy := _of_call(node.func)):
            return remedy
    return _COMPUTES


def of_random() -> str:
    """Returns the remedy for random numbers drawn on the CPU."""
    frame, users = sys._getframe(1), user_frame()
    while frame is not users and frame.f_back is not None:
        if frame.f_code.co_filename.startswith(_DATA):
            return _LOADER
        frame = frame.f_back
    return "Pass device='jax'."


def _of_call(function: ast.expr) -> str | None:
    """Returns the remedy for a number that a call needs; None if the function is not in the
    table.
    """
    name = _name(function)
    if isinstance(function, ast.Name) and name in _BUILTINS:
        return _OF_TENSORS.format(name, _BUILTINS[name])
    return _SIZE if isinstance(function, ast.Attribute) and name in _MAKES_SHAPES else None


def _around(frame: FrameType) -> list[ast.AST]:
    """Returns the syntax nodes around the running instruction, the innermost last."""
    found = running(frame)
    if found is None:
        return []
    tree, place = found
    return [node for node in ast.walk(tree) if _has_place(node) and _encloses(node, place)]


def _has_place(node: ast.AST) -> bool:
    return isinstance(node, ast.stmt | ast.expr)


def _encloses(node: ast.AST, place: Place) -> bool:
    return encloses(extent(node), place)  # type: ignore[arg-type]


def _decides(node: ast.AST, frame: FrameType) -> bool:
    """Returns True if the running instruction is the condition of a statement or expression."""
    condition = getattr(node, "test", node)
    found = running(frame)
    assert found is not None
    return _encloses(condition, found[1]) or found[1] == extent(node)  # type: ignore[arg-type]


def _called(frame: FrameType) -> list[str]:
    """Returns the names of the functions called by the running instruction and around it."""
    calls = [node.func for node in _around(frame) if isinstance(node, ast.Call)]
    return [_name(function) for function in reversed(calls)]


def _logs(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) in _LOGGING


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", None) or getattr(function, "id", "")
