"""Finds out among which numbers of a jaxpr others are: what was moved, and what was selected."""

from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal

_COMPARING = frozenset((lax.eq_p, lax.ne_p, lax.lt_p, lax.le_p, lax.gt_p, lax.ge_p))
_RANKING = frozenset(
    (
        *(lax.reduce_max_p, lax.reduce_min_p, lax.sort_p, lax.top_k_p, lax.cummax_p, lax.cummin_p),
        *(lax.scatter_max_p, lax.scatter_min_p),
    )
)
_SELECTING = frozenset(
    (
        *(lax.max_p, lax.min_p, lax.clamp_p, lax.reduce_window_max_p, lax.reduce_window_min_p),
        *(lax.gather_p, lax.scatter_p, lax.slice_p, lax.dynamic_slice_p),
    )
)
_MOVING = (_RANKING | _SELECTING).union(
    (
        *(lax.reshape_p, lax.broadcast_in_dim_p, lax.transpose_p, lax.squeeze_p, lax.rev_p),
        *(lax.concatenate_p, lax.pad_p, lax.select_n_p, lax.copy_p, lax.abs_p, lax.neg_p),
        *(lax.dynamic_update_slice_p, lax.convert_element_type_p, lax.optimization_barrier_p),
    )
)
"""Operations that give some of their operands' numbers, or these without a sign."""


Root = tuple[Any, ...]
"""A number that an operation computes: its variable, behind the indexes of the calls around it. Or
an input of the jaxpr: its index, behind None.
"""


class Found(NamedTuple):
    """Where the numbers of a variable come from.

    Attributes:
        roots: the numbers among which they are, with the rank: 2 for extrema of these and the like,
            1 for some that were selected, 0 for all of them.
        entry: the inputs of the jaxpr from which it was computed, by index.
    """

    roots: dict[Root, int]
    entry: frozenset[int] = frozenset()


NOTHING = Found({})


def is_computed(value: Any) -> bool:
    """Returns True for a variable that may hold rounded numbers."""
    if isinstance(value, Literal):
        return False
    return jnp.issubdtype(value.aval.dtype, jnp.floating) and value.aval.size > 0


def body_of(equation: Any) -> Any:
    """Returns the jaxpr of the operation that an equation calls; None for other equations."""
    return equation.params["jaxpr"].jaxpr if equation.primitive.name == "jit" else None


def is_comparison(equation: Any) -> bool:
    """Returns True if an equation compares numbers that were computed."""
    return equation.primitive in _COMPARING and all(map(is_computed, equation.invars))


def _rank(primitive: Any) -> int:
    return 2 if primitive in _RANKING else int(primitive in _SELECTING)


def ranks(equation: Any) -> bool:
    """Returns True if an equation finds extrema of numbers, or the like."""
    return equation.primitive in _RANKING and is_computed(equation.outvars[0])


def is_literal(value: object) -> bool:
    """Returns True for a constant in an equation."""
    return isinstance(value, Literal)


class Summary:
    """What a jaxpr compares, and where its variables come from.

    Args:
        jaxpr: the jaxpr.
        is_whole: whether it is a program, whose inputs are stored, and no operation.

    Attributes:
        known: what is known of its variables.
        compared: the operands of comparisons; in a program, those that come from different
            variables.
    """

    def __init__(self, jaxpr: Any, is_whole: bool = False) -> None:
        self.known: dict[Any, Found] = dict.fromkeys(jaxpr.constvars, NOTHING)
        self.compared: list[tuple[Found, Found]] = []
        self._is_whole = is_whole
        for i, variable in enumerate(jaxpr.invars):
            is_root = is_computed(variable) and not is_whole
            roots = {(None, i): 0} if is_root else {}
            self.known[variable] = Found(roots, frozenset((i,)))
        for index, equation in enumerate(jaxpr.eqns):
            operands = [NOTHING if is_literal(v) else self.known[v] for v in equation.invars]
            body = body_of(equation)
            if body is None:
                self._compute(equation, operands)
            else:
                self._call(index, equation, body, operands)

    def _compute(self, equation: Any, operands: list[Found]) -> None:
        if is_comparison(equation):
            self.compared.append((operands[0], operands[1]))
        entry = frozenset[int]().union(*(one.entry for one in operands))
        for variable in equation.outvars:
            roots: dict[Root, int] = {}
            if is_computed(variable):
                if equation.primitive in _MOVING:
                    rank = _rank(equation.primitive)
                    for one in operands:
                        _add(roots, one.roots.items(), rank)
                else:
                    roots[variable,] = 0
            self.known[variable] = Found(roots, entry)

    def _call(self, index: int, equation: Any, body: Any, operands: list[Found]) -> None:
        summary = summary_of(body)
        results = {v: equation.outvars[i] for i, v in enumerate(body.outvars) if not is_literal(v)}

        def outside(found: Found) -> Found:
            roots: dict[Root, int] = {}
            for root, rank in found.roots.items():
                if root[0] is None:
                    _add(roots, operands[root[1]].roots.items(), rank)
                else:
                    own = (results[root[0]],) if root[0] in results else (index, *root)
                    _add(roots, [(own, rank)], 0)
            entry = frozenset[int]().union(*(operands[i].entry for i in found.entry))
            return Found(roots, entry)

        for a, b in summary.compared:
            given_a, given_b = ({id(equation.invars[i]) for i in one.entry} for one in (a, b))
            if not self._is_whole or given_a != given_b:
                self.compared.append((outside(a), outside(b)))
        for inner, variable in zip(body.outvars, equation.outvars, strict=True):
            self.known[variable] = NOTHING if is_literal(inner) else outside(summary.known[inner])


_summaries: WeakKeyDictionary[Any, Summary] = WeakKeyDictionary()


def summary_of(body: Any) -> Summary:
    """Returns the summary of an operation's jaxpr."""
    found = _summaries.get(body)
    if found is None:
        found = _summaries[body] = Summary(body)
    return found


def _add(roots: dict[Root, int], more: Iterable[tuple[Root, int]], rank: int) -> None:
    for root, own in more:
        roots[root] = max(own, rank, roots.get(root, 0))
