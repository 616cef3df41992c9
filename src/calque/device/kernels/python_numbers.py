"""Numbers that `calque.jit` traces, as arguments of operators."""

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor


def pinned(number: Any) -> Any:
    """Returns the value of a traced number, which is guarded, as PyTorch takes it."""
    return plain(number.node.pin())


def plain(value: Any) -> Any:
    """Returns a number as PyTorch takes it: NumPy's as Python's."""
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


_stand_ins: WeakValueDictionary[float, Any] = WeakValueDictionary()
"""The nodes of traced numbers, by the floats that stand for them in PyTorch's C++."""


def stand_for(node: Any, number: float) -> float:
    """Returns a float that stands for a traced number as long as its trace runs.

    Args:
        node: the node of the traced number.
        number: the float, which no other number equals.
    """
    _stand_ins[number] = node
    node.watch.keep(node)
    return number


def without_stand_ins(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns the arguments of an operator with traced numbers instead of floats that stand for
    them.
    """
    if not _stand_ins:
        return args, kwargs
    return [_number(one) for one in args], {name: _number(one) for name, one in kwargs.items()}


def _number(value: Any) -> Any:
    if type(value) is list or type(value) is tuple:
        return type(value)(map(_number, value))
    node = _stand_ins.get(value) if type(value) is float else None
    return value if node is None else torch.SymFloat(node)


def computed_nodes(values: Iterable[Any]) -> list[Any]:
    """Returns the nodes of the numbers among some arguments that each call computes in Python."""
    leaves = [one for v in values for one in (v if isinstance(v, list | tuple) else (v,))]
    nodes = [one.node for one in leaves if isinstance(one, torch.SymFloat)]
    return [node for node in nodes if getattr(node, "in_python", False) and node.known]


def refuse_stand_ins(values: Any) -> None:
    """Give up the traced numbers for which some arguments stand, because no rule would get them."""
    for value in values if _stand_ins else ():
        for one in value if isinstance(value, list | tuple) else (value,):
            node = _stand_ins.get(one) if type(one) is float else None
            if node is not None:
                node.watch.give_up(node)
