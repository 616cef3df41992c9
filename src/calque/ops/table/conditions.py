"""Checks a rule's arguments before it is traced, by the facts of its operator."""

from collections.abc import Sequence
from typing import Any

from jax import Array

from calque.ops.table.facts import Refusal, fact_of
from calque.ops.table.promotion import (
    FLOAT,
    HALF,
    RefusedDtype,
    category,
    result_type,
    type_name,
)


def check(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise PyTorch's errors for the arguments of a rule, as declared by its facts.

    Args:
        name: the rule.
        args, kwargs: its arguments, arrays for tensors.

    Raises:
        RefusedDtype: PyTorch has no kernel for the dtype, or refuses it.
        Exception: the error raised by the operator's own condition.
    """
    known = fact_of(name)
    refused, condition = known.get("refuses", ()), known.get("condition")
    for refusal in (refused,) if isinstance(refused, Refusal) else refused:
        _check_dtype(name, refusal, args)
    if condition is not None:
        condition(*args, **kwargs)


def _check_dtype(name: str, refusal: Refusal, args: Sequence[Any]) -> None:
    arrays = [a for a in args if isinstance(a, Array)]
    if not arrays:
        return
    dtype = result_type(*arrays[:2]) if refusal.pair else arrays[0].dtype
    halved = HALF in refusal.categories and category(dtype) == FLOAT and dtype.itemsize == 2
    if category(dtype) not in refusal.categories and not halved:
        return
    if refusal.kernel:
        raise RefusedDtype(f"\"{refusal.says}\" not implemented for '{type_name(dtype)}'")
    base = name.removeprefix("aten::").partition(".")[0]
    raise RefusedDtype(f"{base}: {refusal.says}")
