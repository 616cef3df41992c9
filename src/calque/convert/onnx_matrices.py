"""Decompositions of linear algebra, unrolled for the size of the matrices.

They are computed in float64, without the check of PyTorch that a matrix has an inverse. Results
that say whether it has one (`info`) are None: a program that uses them is not decomposed.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

_LARGEST = 32
"""The most rows of a matrix; each one adds some 20 operators."""


class _Eliminated(NamedTuple):
    """A matrix after Gauss-Jordan elimination.

    Attributes:
        pivots: the last one of each step, `(..., n)`.
        sign: of the permutation of rows.
        solution: the inverse, times what was on the right-hand side.
    """

    pivots: Tensor
    sign: Tensor
    solution: Tensor


def _wide(x: Tensor) -> Tensor:
    if x.is_complex() or x.shape[-2] > _LARGEST:
        raise NotImplementedError(f"matrices of {x.dtype}{list(x.shape)}")
    return x.to(torch.float64)


def _eliminate(a: Tensor, b: Tensor) -> _Eliminated:
    """Solves `a @ x = b` for square matrices, with the largest pivot of each column."""
    n = a.shape[-1]
    rows = torch.arange(n)
    pivots, sign = [], torch.ones(a.shape[:-2], dtype=a.dtype)
    for k in range(n):
        largest = a[..., k:, k].abs().argmax(-1, keepdim=True) + k
        order = torch.where(rows == k, largest, torch.where(rows == largest, k, rows))
        a, b = (m.gather(-2, order.unsqueeze(-1).expand(m.shape)) for m in (a, b))
        sign = torch.where(largest.squeeze(-1) == k, sign, -sign)
        pivot = a[..., k : k + 1, k : k + 1]
        pivots.append(pivot.reshape(sign.shape))
        factor = torch.where((rows == k).unsqueeze(-1), 0.0, a[..., :, k : k + 1] / pivot)
        factor = torch.where(pivot == 0, 0.0, factor)  # then the determinant is zero
        a, b = (m - factor * m[..., k : k + 1, :] for m in (a, b))
    found = torch.stack(pivots, -1)
    return _Eliminated(found, sign, b / found.unsqueeze(-1))


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype).expand(like.shape)


def _inverse(A: Tensor, *, check_errors: bool = False) -> tuple[Tensor, None]:
    a = _wide(A)
    return _eliminate(a, _identity(a)).solution.to(A.dtype), None


def _solve(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    is_vector = B.dim() == 1 or (A.dim() - 1 == B.dim() and B.shape == A.shape[:-1])
    a, b = _wide(A), B.to(torch.float64)
    b = b.unsqueeze(-1) if is_vector else b
    if not left:
        a, b = a.mT, b.mT
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    found = _eliminate(a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])).solution
    found = found if left else found.mT
    return (found.squeeze(-1) if is_vector else found).to(A.dtype), None, None, None


def _determinant(A: Tensor) -> tuple[Tensor | None, ...]:
    a = _wide(A)
    made = _eliminate(a, a[..., :1])
    return (made.sign * made.pivots.prod(-1)).to(A.dtype), None, None


def _log_determinant(A: Tensor) -> tuple[Tensor | None, ...]:
    a = _wide(A)
    made = _eliminate(a, a[..., :1])
    sign = made.sign * made.pivots.sign().prod(-1)
    return sign.to(A.dtype), made.pivots.abs().log().sum(-1).to(A.dtype), None, None


def _cholesky(self: Tensor, upper: bool = False) -> Tensor:
    a = _wide(self)
    a = a.mT if upper else a
    n = a.shape[-1]
    columns: list[Tensor] = []
    for j in range(n):
        rest = a[..., j:, j : j + 1]
        if columns:
            before = torch.cat(columns, -1)[..., j:, :]
            rest = rest - (before * before[..., :1, :]).sum(-1, keepdim=True)
        top = rest[..., :1, :].sqrt()
        column = torch.cat([torch.zeros_like(a[..., :j, :1]), top, rest[..., 1:, :] / top], -2)
        columns.append(column)
    found = torch.cat(columns, -1)
    return (found.mT if upper else found).to(self.dtype)


def _cholesky_ex(self: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    return _cholesky(self, upper), None


def _triangular(
    self: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    a, b = _wide(self), B.to(torch.float64)
    if not left:
        return _triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT.to(B.dtype)
    n = a.shape[-1]
    rows: dict[int, Tensor] = {}
    for i in reversed(range(n)) if upper else range(n):
        rest = b[..., i : i + 1, :]
        for j, known in rows.items():
            rest = rest - a[..., i : i + 1, j : j + 1] * known
        rows[i] = rest if unitriangular else rest / a[..., i : i + 1, i : i + 1]
    return torch.cat([rows[i] for i in range(n)], -2).to(B.dtype)


def _triangular_solve(
    self: Tensor,
    A: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Tensor, Tensor]:
    a = A.mT if transpose else A
    is_upper = upper != transpose
    return _triangular(a, self, upper=is_upper, unitriangular=unitriangular), A.clone()


def _cholesky_solve(self: Tensor, input2: Tensor, upper: bool = False) -> Tensor:
    lower = _wide(input2.mT if upper else input2)
    first = _triangular(lower, self.to(torch.float64), upper=False)
    return _triangular(lower.mT, first, upper=True).to(self.dtype)


def _cholesky_inverse(self: Tensor, upper: bool = False) -> Tensor:
    return _cholesky_solve(_identity(self), self, upper)


def _qr(A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Reflects each column onto its first element, with the signs of LAPACK."""
    a = _wide(A)
    rows, columns = a.shape[-2:]
    q = torch.eye(rows, dtype=a.dtype).expand(*a.shape[:-2], rows, rows)
    for k in range(min(rows - 1, columns)):
        column = a[..., k:, k : k + 1]
        head, tail = column[..., :1, :], column[..., 1:, :]
        below = tail.pow(2).sum(-2, keepdim=True)
        size = (head.pow(2) + below).sqrt()
        beta = torch.where(head < 0, size, -size)
        is_done = below == 0  # then LAPACK does not reflect
        v = torch.cat([torch.ones_like(head), tail / torch.where(is_done, 1.0, head - beta)], -2)
        tau = torch.where(is_done, 0.0, (beta - head) / torch.where(is_done, 1.0, beta))
        lower = a[..., k:, :] - tau * v * (v * a[..., k:, :]).sum(-2, keepdim=True)
        a = torch.cat([a[..., :k, :], lower], -2)
        right = q[..., :, k:] - tau * (q[..., :, k:] @ v) * v.mT
        q = torch.cat([q[..., :, :k], right], -1)
    count = rows if mode == "complete" else min(rows, columns)
    factor = q.new_zeros(0) if mode == "r" else q[..., :, :count]
    return factor.to(A.dtype), a[..., :count, :].triu().to(A.dtype)


def _grouped_product(
    self: Tensor, mat2: Tensor, offs: Tensor | None = None, bias: Any = None, out_dtype: Any = None
) -> Tensor:
    """Multiplies each row with the matrix of its group; `offs` has the ends of the groups."""
    if offs is None or bias is not None or self.dim() != 2 or mat2.dim() != 3:
        raise NotImplementedError("_grouped_mm with these shapes")
    groups = (torch.arange(self.shape[0]).unsqueeze(1) >= offs).sum(1)
    matrices = mat2.index_select(0, groups.clamp(max=mat2.shape[0] - 1))
    return torch.bmm(self.unsqueeze(1), matrices).squeeze(1).to(out_dtype or self.dtype)


_aten: Any = torch.ops.aten
MATRICES: dict[Any, Callable[..., Any]] = {
    _aten._grouped_mm.default: _grouped_product,
    _aten._linalg_det.default: _determinant,
    _aten._linalg_slogdet.default: _log_determinant,
    _aten._linalg_solve_ex.default: _solve,
    _aten.cholesky.default: _cholesky,
    _aten.cholesky_inverse.default: _cholesky_inverse,
    _aten.cholesky_solve.default: _cholesky_solve,
    _aten.linalg_cholesky_ex.default: _cholesky_ex,
    _aten.linalg_inv_ex.default: _inverse,
    _aten.linalg_qr.default: _qr,
    _aten.linalg_solve_triangular.default: _triangular,
    _aten.triangular_solve.default: _triangular_solve,
}
CHECKS_OF_MATRICES: Sequence[Any] = (_aten._linalg_check_errors.default,)
"""Operators that raise for a matrix without an inverse."""
