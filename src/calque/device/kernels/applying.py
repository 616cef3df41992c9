"""Calls the function of a rule on arrays, with its checks and errors.

Only this module knows the calling convention of rules. `call.Runner` compiles it to executables;
`calque.graph.array_graph` calls it while a whole graph is traced.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
from jax import Array

from calque.device.kernels.meta_check import Outline
from calque.device.memory import rng
from calque.device.memory.cell import active
from calque.device.runtime import precision, sizes
from calque.ops.table import conditions, promotion
from calque.ops.table.registry import Rule
from calque.upstream.jax_internals import convert_element_type

UNUSED = frozenset(("device", "layout", "pin_memory", "non_blocking", "generator", "names"))
"""Parameters of operators that are never passed to a rule."""

LARGEST_SIGNED = 2**63 - 1


def is_unsigned(value: object) -> bool:
    """Returns True for an integer that PyTorch takes as unsigned, because int64 cannot hold it."""
    return type(value) is int and value > LARGEST_SIGNED


def apply(
    rule: Rule,
    key: Array | None,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    default_float: Any,
    outline: Outline | None,
) -> Any:
    """Applies a rule to arrays (see `calque.ops.table.registry`).

    Args:
        rule: the rule.
        key: the packed random key, for a random rule.
        args, kwargs: the arguments of the operator without those in `UNUSED`, with arrays for
            tensors and numpy dtypes for dtypes.
        default_float: `torch.get_default_dtype()`, as a numpy dtype.
        outline: checks the arguments; None if they are not those of an operator.

    Raises:
        RuntimeError: PyTorch's error for these shapes, dtypes and options.
        torch.OutOfMemoryError: a single result is larger than the device's memory.
    """
    ours = rule.function.__module__.startswith("calque.")
    first = [rng.key_of(key, ours)] if rule.random else []
    checked = nullcontext() if outline is None else outline.checked(args, kwargs, ours)
    precise = precision.scope() if ours else nullcontext()
    with promotion.default_float_scope(default_float), precise, checked:
        if outline is not None:
            conditions.check(rule.name, args, kwargs)
            outline.check_sizes(args, kwargs)
        given = zip(rule.parameters, args, strict=False)
        args = [_number(value, name in rule.static) for name, value in given]
        kwargs = {n: _number(value, n in rule.static) for n, value in kwargs.items()}
        found = rule.function(*first, *args, **{rule.keyword(n): v for n, v in kwargs.items()})
        for result in jax.tree.leaves(found):
            sizes.check(result, active.trace is None)
        return found


def _number(value: Any, static: bool) -> Any:
    """Returns an argument of a rule, for which an unsigned number is a weakly typed array: as an
    operand of integers it wraps around, and of floats it does not. Rules for which a number is
    static compute with floats only.
    """
    if is_unsigned(value):
        if static:
            return float(value)
        return convert_element_type(np.uint64(value), np.dtype("uint64"), weak_type=True)
    if type(value) is list and any(map(is_unsigned, value)):
        return [_number(one, static) for one in value]
    return value
