"""Functions whose result may share memory with an argument, though their schema does not say so.

`torch.func.functionalize` relies on the schema: a write to such a result would not reach the
argument. Here these functions are composed of operators that declare the alias.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def _type_as(input: Tensor, other: Tensor) -> Tensor:
    return input.to(other)


def _broadcast_tensors(*tensors: Any) -> list[Tensor]:
    given = _listed(tensors)
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in given))
    return [tensor.expand(shape) for tensor in given]


def _at_least(dims: int) -> Callable[..., Any]:
    def one(tensor: Tensor) -> Tensor:
        if not tensor.dim():
            return tensor.reshape((1,) * dims)
        if tensor.dim() == 1 and dims > 1:
            tensor = tensor.unsqueeze(0)
        return tensor.unsqueeze(-1) if tensor.dim() == 2 and dims > 2 else tensor

    def run(*tensors: Any) -> Any:
        if len(tensors) == 1 and isinstance(tensors[0], Tensor):
            return one(tensors[0])
        return tuple(map(one, _listed(tensors)))

    return run


def _meshgrid(*tensors: Any, indexing: str = "ij") -> list[Tensor]:
    given = _listed(tensors)
    swaps = indexing == "xy" and len(given) > 1
    order = [given[1], given[0], *given[2:]] if swaps else given
    lines = [tensor.reshape(-1) for tensor in order]
    shape = [line.shape[0] for line in lines]
    found = []
    for i, line in enumerate(lines):
        place = [1] * len(lines)
        place[i] = -1
        found.append(line.view(place).expand(shape))
    return [found[1], found[0], *found[2:]] if swaps else found


def _sum_to_size(input: Tensor, *size: Any) -> Tensor:
    shape = tuple(size[0]) if size and isinstance(size[0], Sequence) else size
    if tuple(input.shape) == shape:
        return input
    return torch.ops.aten.sum_to_size.default(input, shape)


def _cartesian_prod(*tensors: Any) -> Tensor:
    given = _listed(tensors)
    return given[0] if len(given) == 1 else torch.ops.aten.cartesian_prod.default(given)


def _einsum(equation: str, operands: Any, *, path: Any = None) -> Tensor:
    operator = torch.ops.aten.einsum.default
    run = operator.decompose if len(operands) == 1 else operator  # several operands are multiplied
    return run(equation, list(operands), path=path)


def _conj_physical(input: Tensor) -> Tensor:
    return torch.ops.aten.conj_physical.default(input) if input.is_complex() else input


def _to_dense(input: Tensor, dtype: Any = None, *, masked_grad: Any = None) -> Tensor:
    if input.layout is torch.strided:
        return input if dtype is None else input.to(dtype)
    return torch.ops.aten.to_dense.default(input, dtype, masked_grad=masked_grad)


def _feature_dropout(name: str) -> Callable[..., Tensor]:
    def run(input: Tensor, p: float, train: bool) -> Tensor:
        if not train or p == 0 or not input.numel():
            return input
        return getattr(torch.ops.aten, name).default(input, p, train)

    return run


def _split(tensor: Tensor, split_size: Any, dim: int = 0) -> Any:
    return tensor.split(split_size, dim)


def _chunk(input: Tensor, chunks: int, dim: int = 0) -> Any:
    return input.chunk(chunks, dim)


def _listed(tensors: tuple[Any, ...]) -> list[Tensor]:
    is_list = len(tensors) == 1 and isinstance(tensors[0], (list, tuple))
    return list(tensors[0] if is_list else tensors)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "atleast_1d": _at_least(1),
    "atleast_2d": _at_least(2),
    "atleast_3d": _at_least(3),
    "broadcast_tensors": _broadcast_tensors,
    "cartesian_prod": _cartesian_prod,
    "conj_physical": _conj_physical,
    "einsum": _einsum,
    "feature_alpha_dropout": _feature_dropout("feature_alpha_dropout"),
    "feature_dropout": _feature_dropout("feature_dropout"),
    "meshgrid": _meshgrid,
    "unsafe_chunk": _chunk,
    "unsafe_split": _split,
    "unsafe_split_with_sizes": _split,
}
"""By the names that PyTorch's Python code calls."""
METHODS: dict[str, Callable[..., Any]] = {
    "conj_physical": _conj_physical,
    "to_dense": _to_dense,
    "sum_to_size": _sum_to_size,
    "type_as": _type_as,
    "unsafe_chunk": _chunk,
    "unsafe_split": _split,
    "unsafe_split_with_sizes": _split,
}
"""Methods of tensors."""
