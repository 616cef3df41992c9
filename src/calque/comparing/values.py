"""Compares the values of two nodes as `torch.testing.assert_close` compares tensors."""

import dataclasses
import enum
from typing import Any, NamedTuple

import torch

from calque.comparing.differences import Kind
from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph.checks import class_name
from calque.tracing.graph.templates import take_apart
from calque.upstream.torch_internals import tree_leaves

NUMBERS = (bool, int, float, complex)
_CONSTANTS = (str, bytes, torch.dtype, torch.device, torch.Size, torch.layout, enum.Enum)

Found = tuple[Kind, str, float | None, float | None]
"""The kind of a difference, its description, and the greatest absolute and relative error."""


def kept(value: Any) -> list[Any]:
    """Copies a result's tensors and numbers, so that later writes do not change them."""
    return [_copied(leaf) for leaf in tree_leaves(value) if _is_compared(leaf)]


def _is_compared(leaf: object) -> bool:
    if isinstance(leaf, torch.Tensor):
        return not leaf.is_meta
    return isinstance(leaf, NUMBERS)


def _copied(leaf: object) -> Any:
    return leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf


class Parts(NamedTuple):
    """The parts of a result.

    Attributes:
        structure: its containers, with the other values in them and the places of tensors and
            numbers.
        leaves: the tensors and numbers, copied.
    """

    structure: Any
    leaves: list[Any]


def parts_of(value: object) -> Parts:
    """Returns the parts of a result, argument or buffer; objects are represented by their tensors.

    >>> parts_of([torch.ones(1), "name"]).structure
    ('builtins.list', {0: 'tensor', 1: 'name'})
    """
    leaves: list[Any] = []

    def walk(part: object) -> Any:
        if _is_compared(part):
            leaves.append(_copied(part))
            return "tensor" if isinstance(part, torch.Tensor) else "number"
        if isinstance(part, dict):
            return class_name(part), {key: walk(each) for key, each in part.items()}
        if isinstance(part, (tuple, list)) and not isinstance(part, torch.Size):
            return class_name(part), {i: walk(each) for i, each in enumerate(part)}
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            fields = [field.name for field in dataclasses.fields(part)]
            return class_name(part), {name: walk(getattr(part, name)) for name in fields}
        if isinstance(part, _CONSTANTS) or part is None:
            return part
        try:
            return class_name(part), {i: walk(each) for i, each in enumerate(take_apart(part)[1])}
        except SymbolicTraceError:
            return class_name(part)

    return Parts(walk(value), leaves)


def other_structure(a: object, b: object, where: str = "") -> str | None:
    """Describes where the structures of two results differ; None if they do not.

    >>> other_structure(parts_of([1, "x"]).structure, parts_of([1, "y"]).structure)
    "at [1], 'x' against 'y'"
    """
    place = f"at {where}, " if where else ""
    if not (isinstance(a, tuple) and isinstance(b, tuple)) or isinstance(a, torch.Size):
        same = type(a) is type(b) and bool(a == b)
        return None if same else f"{place}{_described(a)} against {_described(b)}"
    if a[0] != b[0]:
        return f"{place}a {a[0]} against a {b[0]}"
    if [*a[1]] != [*b[1]]:
        return f"{place}{[*a[1]]} against {[*b[1]]}"
    found = (other_structure(a[1][key], b[1][key], f"{where}[{key!r}]") for key in a[1])
    return next((each for each in found if each is not None), None)


def _described(part: object) -> str:
    return f"a {part[0]}" if isinstance(part, tuple) and part[1:] else repr(part)


def compared(a: list[Any], b: list[Any], tolerances: dict[str, Any]) -> Found | None:
    """Returns how two values copied by `kept` differ; None if they agree.

    Args:
        tolerances: `rtol` and `atol`: both numbers, or both None for the defaults of the dtype.
    """
    if len(a) != len(b):
        return "structure", f"{len(a)} tensors or numbers against {len(b)}", None, None
    for x, y in zip(a, b):
        found = _compared(x, y, tolerances)
        if found is not None:
            return found
    return None


def _compared(a: object, b: object, tolerances: dict[str, Any]) -> Found | None:
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
        text = " ".join(str(error).split()).removeprefix("Tensor-likes are not close! ")
        return "values", f"{_named(a)}: {text}", *_errors(a, b)
    return None


def _named(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _errors(a: torch.Tensor, b: torch.Tensor) -> tuple[float | None, float | None]:
    """Returns the greatest absolute and relative error; infinite where only one is a number."""
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
