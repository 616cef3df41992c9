"""Numbers that `calque.jit` traces, as parameters of rules that are no operands: an `eps`.

For other numbers an executable is compiled. A traced one becomes an argument of it if the rule runs
with an array instead, and has the same kinds of results. Otherwise its value is guarded.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import torch

from calque.device.kernels.python_numbers import pinned

if TYPE_CHECKING:
    from calque.device.kernels.call import Runner

Described = tuple[Any, Callable[..., Any], list[Any]]


def with_numbers(run: "Runner", args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Returns the arguments of a rule without traced numbers that are not operands.

    In their place are arrays, or their values if the rule needs these.
    """
    named = [*zip(run.rule.parameters, args, strict=False), *kwargs.items()]
    numbers = [(name, x) for name, x in named if isinstance(x, torch.SymFloat)]
    fixed = [x for name, x in numbers if name not in run.traced]
    if not fixed:
        return args, kwargs
    traced = _replaced({id(x): x.node.traced for x in fixed}, args, kwargs)
    if _takes(run, fixed, traced, args, kwargs):
        return traced
    return _replaced({id(x): pinned(x) for x in fixed}, args, kwargs)


def _takes(run: "Runner", numbers: list[Any], traced: Any, args: Any, kwargs: Any) -> bool:
    """Returns True if traced numbers can be arrays: the rule does not look at their values, and
    has results of the same kinds.
    """
    if run.rule.random or run.rule.data_dependent or not all(x.node.known for x in numbers):
        return False
    values = {id(x): float(x.node.compute()) for x in numbers}
    calls = [run.described(*each) for each in (traced, _replaced(values, args, kwargs))]
    key = calls[0][0]
    if key not in run.taken:
        run.taken[key] = _are_alike(calls)
    return run.taken[key]


def _replaced(
    new: dict[int, Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Returns arguments with others in the place of some, by id."""
    named = {name: new.get(id(one), one) for name, one in kwargs.items()}
    return [new.get(id(one), one) for one in args], named


def _are_alike(calls: list[Described]) -> bool:
    """Returns True if the functions of calls need no values, and have equal kinds of results."""
    try:
        found = [jax.eval_shape(function, *kinds) for _, function, kinds in calls]
    except Exception:  # the call itself raises errors of its arguments
        return False
    trees = [jax.tree.structure(one) for one in found]
    kinds = [[(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(one)] for one in found]
    return trees[0] == trees[1] and kinds[0] == kinds[1]
