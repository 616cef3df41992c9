"""Generates code for graphs that agrees with their interpreter.

torch.fx prints `-2.0 ** x` for a power of a negative number, `nanj` for a complex nan, and refers
to `inf` or `device` where a parameter has that name. It puts the names of members in quotes without
escaping them, so such a name could close the quotes and inject code. Here each literal is printed
so that Python reads back the same value, under names that no parameter hides, and a name that is
not a valid attribute is a literal too.
"""

import ast
import cmath
import copy
import enum
import keyword
import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx.graph import CodeGen, PythonCode, inplace_methods, magic_methods
from torch.fx.node import Node

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph import modes
from calque.tracing.graph.checks import in_place
from calque.upstream.torch_internals import (
    HigherOrderOperator,
    OpOverload,
    PyTreeCodeGen,
    get_qualified_name,
)

_ATOMS = (bool, str, type(None), torch.dtype, torch.layout, torch.memory_format, Node)
_NUMBERS = (int, float, complex, np.generic)


class _Code:
    """The source code of an argument, which torch.fx prints through its `repr`."""

    def __init__(self, source: str) -> None:
        self._source = source

    def __repr__(self) -> str:
        return self._source


class _Writer:
    """Writes literals, and remembers the globals that they refer to.

    Args:
        namespace: the names of objects in one generated function.
    """

    def __init__(self, namespace: Any) -> None:
        self._namespace = namespace
        self.globals: dict[str, Any] = {}

    def reserve(self, nodes: Sequence[Node]) -> None:
        """Reserve the names of parameters; torch.fx forgets those that it renames.

        Raises:
            TraceError: a parameter is named `torch`, or its name is not an identifier.
        """
        parameters = [node for node in nodes if node.op == "placeholder"]
        names = {str(node.target).lstrip("*") for node in parameters}
        for name in sorted(names):
            if not _is_name(name):
                raise SymbolicTraceError(
                    f"a parameter is named {name!r}, which is not a Python identifier.\nRename "
                    "the parameter."
                )
        if "torch" in names:
            raise SymbolicTraceError(
                "a parameter is named torch, which hides the module torch from the generated "
                "code.\nRename the parameter."
            )
        self._namespace._used_names |= names - set(map(repr, parameters))

    def name(self, hint: str, value: Any) -> str:
        """Returns the name of a class or a function in the generated code."""
        name = self._namespace.create_name(hint, value)
        self.globals[name] = value
        return name

    def argument(self, value: Any) -> Any:
        """Returns the value, or its source if torch.fx would print it differently."""
        kind = type(value)
        if kind in _ATOMS or (kind in (int, float, complex) and _reads_back(value)):
            return value
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            if not isinstance(value, torch.Size):
                parts = [self.argument(part) for part in value]
                same = all(map(_is, parts, value))
                return value if same else (parts if isinstance(value, list) else tuple(parts))
        return _Code(self.source(value))

    def operand(self, value: object) -> Any:
        """Like `argument`, for an operand of an operator;
        a sign binds less tightly than a power.
        """
        if isinstance(value, _NUMBERS):
            source = self.source(value)
            return _Code(f"({source})") if source[0] in "+-" else _Code(source)
        return self.argument(value)

    def owner(self, value: object) -> Any:
        """Like `argument`, in front of a dot."""
        if isinstance(value, _NUMBERS):
            return _Code(f"({self.source(value)})")
        return self.argument(value)

    def quoted(self, value: str) -> Any:
        """Returns a name that torch.fx must not print after a dot."""
        return _Code(str.__repr__(value))

    def member(self, owner: str, path: str) -> str:
        """Returns an expression for a member; any characters in its name are escaped.

        Args:
            owner: the code of the object that has the member.
            path: the dotted name of the member.
        """
        for part in path.split("."):
            owner = f"{owner}.{part}" if _is_name(part) else self._getattr(owner, part)
        return owner

    def _getattr(self, owner: str, name: str) -> str:
        return f"{self.name('getattr', getattr)}({owner}, {str.__repr__(name)})"

    def source(self, value: Any) -> str:
        """Returns an expression with this value."""
        if isinstance(value, enum.Enum):
            return self._member(value)
        if isinstance(value, np.generic):
            return f"{self.name(type(value).__name__, type(value))}({self.source(value.item())})"
        if isinstance(value, float):
            return self._float(value)
        if isinstance(value, complex):
            if _reads_back(value):
                return repr(value)
            parts = f"{self._float(value.real)}, {self._float(value.imag)}"
            return f"{self.name('complex', complex)}({parts})"
        if isinstance(value, slice):
            return self._call(slice, value.start, value.stop, value.step)
        if isinstance(value, range):
            return self._call(range, value.start, value.stop, value.step)
        if isinstance(value, torch.device):
            index = "" if value.index is None else f", {value.index}"
            return f"{self.name('device', torch.device)}({value.type!r}{index})"
        if isinstance(value, (OpOverload, HigherOrderOperator)):
            return get_qualified_name(value)
        if isinstance(value, dict):
            pairs = (f"{self.source(key)}: {self.source(part)}" for key, part in value.items())
            return "{" + ", ".join(pairs) + "}"
        if isinstance(value, (tuple, list)):
            return self._sequence(value)
        return "..." if value is ... else self._of_object(value)

    def _of_object(self, value: Any) -> str:
        """Returns Python's `repr` for known classes; objects of other classes become globals."""
        for kind in (str, bytes, int):
            if isinstance(value, kind) and not isinstance(value, bool):
                return kind.__repr__(value)  # pyright: ignore[reportArgumentType]
        if isinstance(value, type):
            return self.name(value.__name__, value)
        if isinstance(value, Node) or type(value).__module__ in ("builtins", "torch"):
            return repr(value)
        return self.name(type(value).__name__, value)

    def _sequence(self, value: Any) -> str:
        parts = ", ".join(self.source(part) for part in value)
        if isinstance(value, torch.Size):
            return f"torch.Size([{parts}])"
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return f"{self.name(type(value).__name__, type(value))}({parts})"
        if isinstance(value, list):
            return f"[{parts}]"
        return f"({parts},)" if len(value) == 1 else f"({parts})"

    def _call(self, kind: type, *args: Any) -> str:
        return f"{self.name(kind.__name__, kind)}({', '.join(map(self.source, args))})"

    def _float(self, value: float) -> str:
        if math.isfinite(value):
            return float.__repr__(value)
        sign = "-" if math.copysign(1, value) < 0 else ""
        text = "nan" if math.isnan(value) else "inf"
        if text not in self._namespace._used_names:
            return sign + text
        return f"{sign}{self.name('float', float)}('{text}')"

    def _member(self, value: enum.Enum) -> str:
        kind = type(value)
        owner = self.name(kind.__name__, kind)
        if kind.__members__.get(value.name or "") is value:
            return f"{owner}.{value.name}"
        return f"{owner}({self.source(value.value)})"  # several flags of an enum


class _Written:
    """A node with its arguments as they are printed."""

    def __init__(
        self, node: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], op: str = ""
    ) -> None:
        self._node = node
        self.op = op or node.op
        self.target, self.args, self.kwargs = target, args, kwargs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def __repr__(self) -> str:
        return repr(self._node)


def _named(node: Any, writer: _Writer, root: str) -> Any:
    """Returns the node, or an equivalent one if torch.fx would print an invalid name.

    Args:
        root: the code of the object that holds the graph's members.
    """
    if node.op not in ("get_attr", "call_module", "call_method"):
        return node
    *owners, last = str(node.target).split(".") if node.op != "call_method" else [node.target]
    if _is_name(last) and all(map(_is_name, owners)):
        return node
    if node.op == "call_method":
        member = writer.member(repr(node.args[0]), last)
        return _Written(node, "__call__", (_Code(member), *node.args[1:]), node.kwargs)
    if node.op == "call_module":
        member = _Code(writer.member(root, node.target))
        return _Written(node, "__call__", (member, *node.args), node.kwargs, "call_method")
    owner = _Code(writer.member(root, ".".join(owners)) if owners else root)
    name = _Code(str.__repr__(last))
    return _Written(node, getattr, (owner, name), {}, "call_function")


def _written(node: Node, writer: _Writer) -> Any:
    """Returns the node itself if torch.fx prints it correctly."""
    plain = not node.kwargs and all(type(arg) is Node for arg in node.args)
    if plain and node.target not in modes.FUNCTIONS:
        return node
    target, args, kwargs = node.target, node.args, dict(node.kwargs)
    target = modes.FUNCTIONS.get(target, target) if node.op == "call_function" else target
    name = getattr(target, "__name__", "")
    write = [writer.argument] * len(args)
    if node.op == "call_function" and getattr(target, "__module__", "") == "_operator":
        if name in inplace_methods and name != "setitem" and not isinstance(args[0], Node):
            target, args = in_place, (name, *args)  # `x += 1` needs a variable on the left
            write = [writer.argument] * len(args)
        elif name in magic_methods or name == "setitem":
            write = [writer.operand] * len(args)
    elif write and (node.op == "call_method" or target is getattr):
        write[0] = writer.owner
        if target is getattr and isinstance(args[1], str) and not _is_name(args[1]):
            write[1] = writer.quoted
    made = tuple(apply(arg) for apply, arg in zip(write, args))
    named = {key: writer.argument(value) for key, value in kwargs.items()}
    if not all(map(_is_name, kwargs)):
        made, named = (*made, _Code(f"**{writer.source(kwargs)}")), {}
    if target is node.target and all(map(_is, made, node.args)) and len(made) == len(node.args):
        if all(map(_is, named.values(), node.kwargs.values())) and len(named) == len(node.kwargs):
            return node
    return _Written(node, target, made, named)


def _leaving(
    blocks: list[modes.Block], transform: Any, writer: _Writer
) -> Callable[[list[str]], list[str]]:
    """Wraps code so that its open blocks end if it raises.

    Args:
        blocks: the blocks to end (`modes.blocks_of`).
        transform: a further change of the code; may be None.
    """
    leave = writer.name("leave_blocks", modes.leave)
    values, error = writer.name("locals", locals), writer.name("BaseException", BaseException)

    def within(body: list[str]) -> list[str]:
        lines = "".join(transform(body) if transform is not None else body).splitlines()
        caught = [f"except {error}:"]
        caught += [f"    {leave}({values}(), {blocks!r})", "    raise"]
        return [f"{line}\n" for line in ["try:", *(f"    {line}" for line in lines), *caught]]

    return within


def _unchanged(transform: Any, writer: _Writer) -> Callable[[list[str]], list[str]]:
    """Like `_leaving`, for code that sets the gradient mode to constants."""
    context = writer.name("Unchanged", modes.Unchanged)

    def within(body: list[str]) -> list[str]:
        lines = "".join(transform(body) if transform is not None else body).splitlines()
        return [f"{line}\n" for line in [f"with {context}():", *(f"    {line}" for line in lines)]]

    return within


class ExactLiterals(CodeGen):
    """Code generation of torch.fx, with literals that evaluate to the original values."""

    def _gen_python_code(
        self, nodes: Any, root_module: str, namespace: Any, **options: Any
    ) -> PythonCode:
        writer = _Writer(namespace)
        listed = list(nodes)
        writer.reserve(listed)
        written: Any = [_named(_written(node, writer), writer, root_module) for node in listed]
        printer, blocks = self, modes.blocks_of(listed)
        sets = modes.sets_for_itself(listed)
        if blocks or sets:
            printer, inner = copy.copy(self), self._body_transformer
            inner = _leaving(blocks, inner, writer) if blocks else inner
            printer._body_transformer = _unchanged(inner, writer) if sets else inner
        generate = super(ExactLiterals, printer)._gen_python_code
        code = generate(written, root_module, namespace, **options)
        for name in [n for n, value in code.globals.items() if _is_hidden(n, value)]:
            del code.globals[name]
        code.globals.update(writer.globals)
        for name, value in code.globals.items():
            if isinstance(value, types.FunctionType):
                code.globals[name] = vars(value).get("importable", value)
        return code


class FaithfulPyTree(ExactLiterals, PyTreeCodeGen):
    """The same, for graphs whose inputs were containers."""


def _is_hidden(name: str, value: object) -> bool:
    """Returns True if torch.fx has renamed `inf` or `nan` because of a parameter, to no effect."""
    return isinstance(value, float) and name not in ("inf", "nan")


def _reads_back(value: complex) -> bool:
    """Returns True if the `repr` of a number evaluates to it, including the signs of zeros."""
    if not cmath.isfinite(value):
        return False
    return not isinstance(value, complex) or repr(ast.literal_eval(repr(value))) == repr(value)


def _is_name(key: str) -> bool:
    return key.isidentifier() and not keyword.iskeyword(key)


def _is(a: object, b: object) -> bool:
    return a is b
