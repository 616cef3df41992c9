"""What two nodes give, compared as `torch.testing.assert_close` compares tensors."""

from typing import Any

import torch
from torch.utils import _pytree as pytree

from calque.comparing.differences import Kind

Found = tuple[Kind, str, float | None, float | None]
"""The kind of a difference, the words for it, the greatest absolute and relative error."""


def kept(value: Any) -> list[Any]:
    """The tensors and numbers in what a node gives, as they are now, where nothing changes them."""
    return [_copied(leaf) for leaf in pytree.tree_leaves(value) if _is_compared(leaf)]


def _is_compared(leaf: Any) -> bool:
    return isinstance(leaf, (torch.Tensor, bool, int, float, complex))


def _copied(leaf: Any) -> Any:
    return leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf


def compared(a: list[Any], b: list[Any], tolerances: dict[str, Any]) -> Found | None:
    """How two values differ, of which `kept` has made a copy; None where they agree.

    Args:
        tolerances: `rtol` and `atol`, either numbers or None for those of the dtype.
    """
    if len(a) != len(b):
        return "structure", f"{len(a)} tensors or numbers against {len(b)}", None, None
    for x, y in zip(a, b):
        found = _compared(x, y, tolerances)
        if found is not None:
            return found
    return None


def _compared(a: Any, b: Any, tolerances: dict[str, Any]) -> Found | None:
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        same = type(a) is type(b) and (a == b or (a != a and b != b))
        return None if same else ("values", f"{_named(a)} against {_named(b)}", None, None)
    if a.shape != b.shape:
        return "shape", f"{_named(a)} against {_named(b)}", None, None
    if a.dtype != b.dtype:
        return "dtype", f"{_named(a)} against {_named(b)}", None, None
    try:
        torch.testing.assert_close(a, b, **tolerances, equal_nan=True, check_stride=False)
    except AssertionError as error:
        told = " ".join(str(error).split()).removeprefix("Tensor-likes are not close! ")
        return "values", f"{_named(a)}: {told}", *_errors(a, b)
    return None


def _named(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _errors(a: torch.Tensor, b: torch.Tensor) -> tuple[float | None, float | None]:
    """The greatest absolute and relative error; an infinite one where only one is a number."""
    if a.layout is not torch.strided or a.is_nested:
        return None, None
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    same = (x == y) | ((x != x) & (y != y))
    absolute = torch.where(same, 0.0, (x - y).abs()).nan_to_num(nan=torch.inf)
    relative = torch.where(same, 0.0, absolute / y.abs()).nan_to_num(
        nan=torch.inf, posinf=torch.inf
    )
    return float(absolute.max()), float(relative.max())
