"""Finds in the source of a function how a number read from a tensor is used.

A number can be followed (`calque.tracing.record.numbers`) if only calls of PyTorch use it: `x /
scale`, but not `if scale > 1`. Other uses count as escapes.
"""

import ast
import math
import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from calque.tracing.core.statements import Place, extent
from calque.tracing.record.function_source import body_of
from calque.tracing.record.number_formulas import Formula, NumberUse, NumberUses, Use

READS = frozenset(("item", "__int__", "__float__"))
"""The methods of tensors that read a number."""

Env = dict[str, Formula]


_BINARY: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_MATH = frozenset(("ceil", "exp", "floor", "log", "log2", "sqrt", "trunc"))
_FUNCTIONS = {
    **{f.__name__: f for f in (int, float, abs, max, min, round)},
    **{f"math_{name}": getattr(math, name) for name in _MATH},  # as in the code of graphs
}
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_SCOPES = (
    *(ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_SETTINGS = frozenset(("no_grad", "enable_grad", "inference_mode"))
_SEEING = frozenset(
    (
        *("locals", "vars", "eval", "exec", "dir", "breakpoint", "_getframe", "currentframe"),
        *("stack", "f_locals", "f_back", "tb_frame"),
    )
)
"""Names by which code may read the variables of a function."""


@lru_cache(maxsize=256)
def reach_of(code: CodeType) -> NumberUses | None:
    """Returns the uses of the numbers that a function reads; None without its source."""
    # Its code calls `locals()` only to close blocks.
    is_graph = code.co_filename.startswith("<eval_with_key>")
    if not _SEEING.isdisjoint(code.co_names) and not is_graph:
        return None
    body = body_of(code)
    return _Reader(code).read(body) if body is not None else None


class _Reader:
    """Follows numbers through the statements of a function, in execution order.

    Attributes:
        escaped: the positions of reads whose numbers escape.
    """

    def __init__(self, code: CodeType) -> None:
        self.code: CodeType = code
        self.escaped: set[Place] = set()
        self.found: set[Place] = set()
        self.sites: dict[Place, NumberUse] = {}
        self.names: dict[str, Any] = {}
        self._bound: dict[str, set[Place]] = {}
        self._lost: set[str] = set()

    def read(self, body: list[ast.stmt]) -> NumberUses:
        self._statements(body, {})
        for name in self._lost:
            self.escaped |= self._bound.get(name, set())
        sites = self.sites
        while True:  # repeat, because a call with two numbers follows both or none
            mixed = [s for s in sites.values() if not _reads(s.uses).isdisjoint(self.escaped)]
            found = set().union(*(_reads(site.uses) for site in mixed)) - self.escaped
            if not found:
                break
            self.escaped |= found
        kept = {p: s for p, s in sites.items() if _reads(s.uses).isdisjoint(self.escaped)}
        reads = {
            read: {place for place, site in kept.items() if read in _reads(site.uses)}
            for read in self.found - self.escaped
        }
        return NumberUses({read: sites for read, sites in reads.items() if sites}, kept, self.names)

    # Statements

    def _statements(self, nodes: Sequence[ast.stmt], env: Env) -> None:
        for node in nodes:
            self._statement(node, env)

    def _statement(self, node: ast.stmt, env: Env) -> None:
        for part in ast.walk(node):
            if isinstance(part, ast.NamedExpr):
                env.pop(part.target.id, None)
        bound: Env = {}
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound = self._assigned(targets, node.value, env)
        elif isinstance(node, ast.AugAssign):
            self._visit(node.target, env)
            if isinstance(node.target, ast.Name):  # `x += 1` also reads x
                self._lost.add(node.target.id)
            self._visit(node.value, env, (node, "", 2, 1))
        elif isinstance(node, _SCOPES):
            self._visit(node, env)
        elif isinstance(node, ast.With) and all(map(_is_setting, node.items)):
            self._statements(node.body, env)
            return
        elif any(isinstance(getattr(node, part, None), list) for part in ("body", "cases")):
            self._compound(node, env)
        else:
            for child in ast.iter_child_nodes(node):
                self._visit(child, env)
        for name in _stored(node):
            env.pop(name, None)
        env.update(bound)

    def _assigned(self, targets: Sequence[ast.expr], value: ast.expr, env: Env) -> Env:
        """Returns the variables to which numbers that were read are assigned."""
        pairs: Any = [(targets[0], value)] if len(targets) == 1 else []
        if pairs and isinstance(targets[0], ast.Tuple) and isinstance(value, ast.Tuple):
            names, parts = targets[0].elts, value.elts
            starred = any(isinstance(part, ast.Starred) for part in (*names, *parts))
            pairs = list(zip(names, parts)) if len(names) == len(parts) and not starred else []
        if not pairs:
            pairs = [(target, None) for target in targets]
            self._visit(value, env)
        bound: Env = {}
        for target, part in pairs:
            made = self._number(part, env) if part is not None else None
            if part is not None and made is not None and self._is_local(target):
                self._inside(part, env)
                name = target.id  # pyright: ignore[reportAttributeAccessIssue]
                bound[name] = made
                self._bound.setdefault(name, set()).update(made.reads())
                continue
            if part is not None:
                self._visit(part, env)
            self._visit(target, env)
        return bound

    def _compound(self, node: ast.AST, env: Env) -> None:
        """Visit a statement with blocks that may not run, or may run repeatedly."""
        repeats = isinstance(node, (ast.For, ast.AsyncFor, ast.While))
        before: Env = {} if repeats else dict(env)
        after = {name: made for name, made in before.items() if name not in _stored(node)}
        for _, field in ast.iter_fields(node):
            parts = field if isinstance(field, list) else [field]
            if parts and isinstance(parts[0], ast.stmt):
                self._statements(parts, dict(before))
                before = after
            for part in parts:
                if isinstance(part, (ast.ExceptHandler, ast.match_case)):
                    self._compound(part, after)
                elif isinstance(part, ast.AST) and not isinstance(part, ast.stmt):
                    self._visit(part, before)

    # Expressions

    def _visit(self, node: ast.AST, env: Env, use: Any = None, path: tuple[Any, ...] = ()) -> None:
        """Visit an expression.

        Args:
            use: the call that it is an argument of: the node, the name of the function, the number
                of arguments, and its position among them.
            path: its position in that argument.
        """
        made = self._number(node, env)
        if made is not None:
            self._inside(node, env)
            if use is None:
                self._escape(made)
            else:
                call, name, count, position = use
                site = self.sites.setdefault(_place_of(call), NumberUse(name, count, []))
                site.uses.append(Use(made, position, path))
            return
        if isinstance(node, _SCOPES):
            env = {}
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if node.id in env:
                self._escape(env[node.id])
            else:
                self._lost.add(node.id)
        elif isinstance(node, ast.BinOp):
            self._visit(node.left, env, (node, "", 2, 1))
            self._visit(node.right, env, (node, "", 2, 1))
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], _COMPARISONS):
            use = (node, "", 2, 1) if len(node.ops) == 1 else None
            for part in (node.left, *node.comparators):
                self._visit(part, env, use)
        elif use is not None and self._slice(node):
            for name, part in self._slice(node).items():
                self._visit(part, env, use, (*path, name))
        elif isinstance(node, ast.Call) and not _is_starred(node):
            self._call(node, env)
        elif isinstance(node, ast.Subscript):
            self._visit(node.value, env)
            self._visit(node.slice, env, (node, "", 2, 1))
        elif use is not None and isinstance(node, (ast.Tuple, ast.List)):
            for i, part in enumerate(node.elts):
                self._visit(part, env, use, (*path, i))
        else:
            for child in ast.iter_child_nodes(node):
                self._visit(child, env)

    def _call(self, node: ast.Call, env: Env) -> None:
        self._visit(node.func, env)
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        count = len(node.args)
        for i, part in enumerate(node.args):
            self._visit(part, env, (node, name, count, i))
        for keyword in node.keywords:
            self._visit(keyword.value, env, (node, name, count, keyword.arg))

    def _slice(self, node: ast.AST) -> dict[str, ast.expr]:
        """Returns the parts of a slice that are written, by name."""
        if isinstance(node, ast.Slice):
            parts = (("start", node.lower), ("stop", node.upper), ("step", node.step))
            return {name: part for name, part in parts if part is not None}
        if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "slice"):
            return {}
        plain = len(node.args) == 3 and not node.keywords and self._means("slice", slice)
        return dict(zip(("start", "stop", "step"), node.args)) if plain else {}

    def _number(self, node: ast.AST, env: Env) -> Formula | None:
        """Returns how a number is computed; None if it was not read from a tensor."""
        made = self._formula(node, env)
        return made if made is not None and made.reads() else None

    def _formula(self, node: ast.AST, env: Env) -> Formula | None:
        if isinstance(node, ast.Constant):
            return Formula(None, (node.value,)) if type(node.value) in (int, float) else None
        if isinstance(node, ast.Name):
            return env.get(node.id) if isinstance(node.ctx, ast.Load) else None
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return self._applied(_BINARY[type(node.op)], [node.left, node.right], env)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._applied(operator.neg, [node.operand], env)
        if isinstance(node, ast.Call) and not node.keywords and not _is_starred(node):
            return self._called(node, env)
        return None

    def _called(self, node: ast.Call, env: Env) -> Formula | None:
        func, place = node.func, _place_of(node)
        if isinstance(func, ast.Attribute) and func.attr in READS and not node.args:
            self.found.add(place)
            return Formula(read=place)
        if isinstance(func, ast.Name) and func.id in _FUNCTIONS:
            if not self._means(func.id, _FUNCTIONS[func.id]):
                return None
            made = self._applied(_FUNCTIONS[func.id], node.args, env)
            if made is None and func.id in ("int", "float") and len(node.args) == 1:
                self.found.add(place)
                return Formula(read=place)
            return made
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
            if func.value.id == "math" and func.attr in _MATH and self._means("math", math):
                return self._applied(getattr(math, func.attr), node.args, env)
        return None

    def _applied(
        self, function: Callable[..., Any], nodes: list[ast.expr], env: Env
    ) -> Formula | None:
        parts = [self._formula(node, env) for node in nodes]
        return Formula(function, tuple(parts)) if parts and None not in parts else None

    def _inside(self, node: ast.AST, env: Env) -> None:
        """Visit the expressions from which a number is read."""
        if isinstance(node, ast.Call) and _place_of(node) in self.found:
            for child in ast.iter_child_nodes(node):
                inside = child.value if isinstance(child, ast.Attribute) else child
                self._visit(inside, env)
        elif not isinstance(node, ast.Name):
            for child in ast.iter_child_nodes(node):
                self._inside(child, env)

    def _escape(self, made: Formula) -> None:
        self.escaped |= made.reads()

    def _is_local(self, node: ast.AST) -> bool:
        code = self.code
        own = isinstance(node, ast.Name) and node.id in code.co_varnames
        return own and node.id not in code.co_cellvars

    def _means(self, name: str, meaning: object) -> bool:
        """Returns True if a name is global. Its value is compared when it is used."""
        self.names[name] = meaning
        return name not in {*self.code.co_varnames, *self.code.co_freevars, *self.code.co_cellvars}


def _place_of(node: Any) -> Place:
    """Returns the position that Python reports, which begins at the name of a method on a different
    line.
    """
    first, last = extent(node)
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(func, ast.Attribute) and func.lineno != func.end_lineno:
        line, column = extent(func)[1]
        first = line, column - len(func.attr)
    return first, last


def _stored(node: ast.AST) -> set[str]:
    """Returns the names that a statement assigns or deletes."""
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            names.add(part.id)
        given = (getattr(part, kind, None) for kind in ("name", "asname", "rest"))
        names.update(name for name in given if isinstance(name, str))
    return names


def _is_setting(item: ast.withitem) -> bool:
    """Returns True if a `with` statement sets a PyTorch mode and does not swallow exceptions."""
    call = item.context_expr
    func = call.func if isinstance(call, ast.Call) else None
    named = isinstance(func, ast.Attribute) and func.attr in _SETTINGS
    own = named and isinstance(func.value, ast.Name) and func.value.id == "torch"  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    return own and item.optional_vars is None and not call.args  # pyright: ignore[reportAttributeAccessIssue]


def _is_starred(node: ast.Call) -> bool:
    starred = any(isinstance(part, ast.Starred) for part in node.args)
    return starred or any(keyword.arg is None for keyword in node.keywords)


def _reads(uses: list[Use]) -> set[Place]:
    return set().union(*(use.formula.reads() for use in uses))
