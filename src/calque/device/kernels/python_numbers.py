"""Numbers that `calque.jit` traces, as arguments of operators."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def pinned(number: Any) -> Any:
    """Returns the value of a traced number, which PyTorch takes from NumPy as Python's."""
    value = number.node.pin()
    return value.item() if isinstance(value, np.generic) else value


def check_whole_numbers(values: Sequence[Any], name: str) -> None:
    """Refuse traced integers that would determine a result's dtype, because PyTorch sees traced
    numbers as floats.

    They determine none if the result has the dtype of the operator's tensor anyway, or a given one.
    But it may be PyTorch, as in `torch.where`, that gives `scalar_tensor` its dtype.

    Args:
        values: the arguments of an operator.
        name: its name.
    """
    leaves = [x for v in values for x in (v if isinstance(v, list | tuple) else (v,))]
    traced = [x for x in leaves if isinstance(x, torch.SymFloat)]
    if not traced:
        return
    whole = [x.node for x in traced if x.node.integral]
    dtypes = [x.dtype for x in leaves if isinstance(x, Tensor)]
    is_given = not dtypes and any(isinstance(x, torch.dtype) for x in leaves)
    if name == "aten::fill.Scalar" or (is_given and name != "aten::scalar_tensor"):
        whole = [node for node in whole if not node.is_exact]
    if whole:
        if not dtypes or not all(dtype.is_floating_point for dtype in dtypes):
            whole[0].watch.give_up(whole[0])
