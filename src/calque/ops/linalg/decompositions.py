"""Matrix decompositions: Cholesky, LU, QR, eigenvalues, singular values.

XLA reports failure by NaN. The rules compute LAPACK's `info` from it; PyTorch raises its errors.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.linalg.matmul import same_dtype
from calque.ops.table.facts import no_kernel
from calque.ops.table.helpers import first_position
from calque.ops.table.promotion import (
    BOOL,
    HALF,
    INT,
    RefusedDtype,
    complex_dtype,
    is_complex,
    real_dtype,
)
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import each


def adjoint(array: Array) -> Array:
    """Returns the conjugate transpose of each matrix."""
    return jnp.conj(array.mT) if is_complex(array.dtype) else array.mT


def check_square(name: str, array: Array, square: bool = True) -> None:
    """Raise PyTorch's RuntimeError unless the argument is a batch of (square) matrices."""
    if array.ndim < 2:
        raise RuntimeError(f"{name}: The input tensor A must have at least 2 dimensions.")
    if square and array.shape[-1] != array.shape[-2]:
        raise RuntimeError(
            f"{name}: A must be batches of square matrices, but they are {array.shape[-2]} by "
            f"{array.shape[-1]} matrices"
        )
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        raise RefusedDtype(
            f"{name}: Expected a floating point or complex tensor as input. Got {array.dtype}"
        )


# Cholesky -----------------------------------------------------------------------------------------


def _triangle_to_hermitian(array: Array, upper: bool) -> Array:
    """Returns the Hermitian matrix that one triangle determines; ignores the other."""
    lower = adjoint(jnp.triu(array)) if upper else jnp.tril(array)
    return lower + adjoint(jnp.tril(lower, -1))


def _cholesky(matrix: Array) -> Array:
    """Returns the lower factor; NaN where a minor is not positive, and, for single precision, after
    an infinite pivot.
    """
    factor = lax.linalg.cholesky(matrix, symmetrize_input=False)
    if matrix.dtype != jnp.float32:
        return factor
    infinite = jnp.isinf(jnp.diagonal(factor, axis1=-2, axis2=-1))
    # Both are over columns: from the first infinite one on, and strictly after it.
    column = jnp.cumsum(infinite, -1) > 0
    row = jnp.concatenate([jnp.zeros_like(column[..., :1]), column[..., :-1]], -1)
    lost = jnp.tril(row[..., :, None] & column[..., None, :])
    return jnp.where(lost, jnp.nan, factor)


def _failed_minor(matrix: Array, factor: Array) -> Array:
    """Returns the order of the first leading minor that is not positive; 0 if all are."""
    size = matrix.shape[-1]
    failed = jnp.isnan(factor).any((-2, -1))

    def search() -> Array:
        step = jnp.arange(size)
        identity = jnp.eye(size, dtype=matrix.dtype)

        def succeeds(order: Array) -> Array:
            inside = (step[:, None] < order) & (step < order)
            minor = _cholesky(jnp.where(inside, matrix, identity))
            return ~(inside & jnp.isnan(minor)).any((-2, -1))

        good = lax.map(succeeds, jnp.arange(1, size + 1))
        return good.sum(0, dtype=jnp.int32) + 1

    count = lax.cond(failed.any(), search, lambda: jnp.ones(failed.shape, jnp.int32))
    return jnp.where(failed, count, 0).astype(jnp.int32)


@op(
    "linalg_cholesky_ex",
    layout="meta",
    writes=("exact_dtype", "computes_first"),
    reports="linalg.cholesky_ex",
)
def cholesky_ex(
    self: Array, upper: bool = False, check_errors: bool = False
) -> tuple[Array, Array]:
    check_square("linalg.cholesky", self)
    if self.size == 0:
        return self, jnp.zeros(self.shape[:-2], jnp.int32)
    matrix = _triangle_to_hermitian(self, upper)
    factor = _cholesky(matrix)
    return (adjoint(factor) if upper else factor), _failed_minor(matrix, factor)


# LU -----------------------------------------------------------------------------------------------


def lu_info(factors: Array) -> Array:
    """Returns the position, from 1, of the first zero pivot; 0 if the matrix is invertible."""
    zero = jnp.diagonal(factors, axis1=-2, axis2=-1) == 0
    if zero.shape[-1] == 0:
        return jnp.zeros(factors.shape[:-2], jnp.int32)
    first = first_position(lax.argmax, zero, -1) + 1
    return jnp.where(zero.any(-1), first, 0).astype(jnp.int32)


def lu_factors(array: Array) -> tuple[Array, Array]:
    """Returns the LU factors in one matrix, and LAPACK's pivots (from 1)."""
    if array.size == 0:
        shape = (*array.shape[:-2], min(array.shape[-2:]))
        return array, jnp.zeros(shape, jnp.int32)
    factors, pivots, _ = lax.linalg.lu(array)
    return factors, pivots.astype(jnp.int32) + 1


def permutation(pivots: Array, rows: int) -> Array:
    """Returns the order of the rows that LAPACK's pivots (from 1) describe."""
    if pivots.size == 0:
        return jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (*pivots.shape[:-1], rows))
    return lax.linalg.lu_pivots_to_permutation(pivots - 1, rows)


def _check_pivot(name: str, pivot: bool) -> None:
    if not pivot:
        raise RuntimeError(f"{name}: LU without pivoting is not implemented on this device")


@op(
    "linalg_lu_factor_ex",
    layout="meta",
    writes=("exact_dtype", "computes_first"),
    reports="torch.linalg.lu_factor_ex",
)
def lu_factor_ex(
    A: Array, pivot: bool = True, check_errors: bool = False
) -> tuple[Array, Array, Array]:
    check_square("torch.lu_factor", A, square=False)
    _check_pivot("linalg.lu_factor", pivot)
    factors, pivots = lu_factors(A)
    return factors, pivots, lu_info(factors)


@op("lu_unpack", writes=("exact_dtype", "computes_first"))
def lu_unpack(
    LU_data: Array, LU_pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Array, Array, Array]:
    rows, columns = LU_data.shape[-2:]
    inner = min(rows, columns)
    none = jnp.zeros((0,), LU_data.dtype)
    lower = upper = order = none
    if unpack_data:
        unit = jnp.eye(rows, inner, dtype=LU_data.dtype)
        lower = jnp.tril(LU_data[..., :, :inner], -1) + unit
        upper = jnp.triu(LU_data[..., :inner, :])
    if unpack_pivots:
        places = permutation(LU_pivots, rows)
        order = (jnp.arange(rows)[:, None] == places[..., None, :]).astype(LU_data.dtype)
    return order, lower, upper


@op(
    "linalg_lu",
    layout="meta",
    writes=("exact_dtype", "computes_first"),
    refuses=no_kernel("lu_cpu", BOOL, INT, HALF),
)
def lu(A: Array, pivot: bool = True) -> tuple[Array, Array, Array]:
    check_square("linalg.lu", A, square=False)
    _check_pivot("linalg.lu", pivot)
    return lu_unpack(*lu_factors(A))


# QR -----------------------------------------------------------------------------------------------


@op("linalg_qr", layout="meta", writes=("exact_dtype", "computes_first"))
def qr(A: Array, mode: str = "reduced") -> tuple[Array, Array]:
    check_square("linalg.qr", A, square=False)
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', "
            "or 'complete'"
        )
    rows, columns = A.shape[-2:]
    inner = rows if mode == "complete" else min(rows, columns)
    none = jnp.zeros((0,), A.dtype)
    if A.size == 0:
        upper = jnp.zeros((*A.shape[:-2], inner, columns), A.dtype)
        eye = jnp.broadcast_to(jnp.eye(rows, inner, dtype=A.dtype), (*A.shape[:-2], rows, inner))
        return (none if mode == "r" else eye), upper
    if mode == "r":
        return none, jnp.linalg.qr(A, mode="r")
    factor, upper = jnp.linalg.qr(A, mode=mode)
    return factor, upper


@op("geqrf", columns=(0,), writes=("computes_first",))
def geqrf(self: Array) -> tuple[Array, Array]:
    check_square("torch.geqrf", self, square=False)
    if self.size == 0:
        return self, jnp.zeros((*self.shape[:-2], min(self.shape[-2:])), self.dtype)
    reflectors, scales = jnp.linalg.qr(self, mode="raw")
    return reflectors.mT, scales


@op("linalg_householder_product", layout="meta", writes=("computes_first",))
def householder_product(input: Array, tau: Array) -> Array:
    if input.ndim < 2:
        says = "input must have at least 2 dimensions."
    elif input.shape[-2] < input.shape[-1]:
        says = "input.shape[-2] must be greater than or equal to input.shape[-1]"
    elif input.shape[-1] < tau.shape[-1]:
        says = "input.shape[-1] must be greater than or equal to tau.shape[-1]"
    elif (batch := tau.shape[:-1]) != input.shape[:-2]:
        says = f"Expected batch dimensions of tau to be equal to input.shape[:-2], but got {batch}"
    else:
        return lax.linalg.householder_product(input, tau) if input.size else input
    raise RuntimeError(f"torch.linalg.householder_product: {says}")


def _ormqr_condition(
    self: Any, input2: Any, input3: Any, left: bool = True, *_: Any, **__: Any
) -> None:
    if min(self.ndim, input3.ndim) < 2:
        raise RuntimeError("torch.ormqr: input and other must have at least 2 dimensions.")
    side = "other.shape[-2]" if left else "other.shape[-1]"
    rows, scales = input3.shape[-2 if left else -1], input2.shape[-1] if input2.ndim else 1
    if scales > self.shape[-1]:
        raise RuntimeError(
            "torch.ormqr: tau.shape[-1] must be less than or equal to input.shape[-1]"
        )
    if scales != min(rows, self.shape[-1]):
        raise RuntimeError(
            f"torch.ormqr: tau.shape[-1] must be equal to min({side}, input.shape[-1])"
        )
    if input2.ndim != self.ndim - 1:
        raise RuntimeError(
            "torch.ormqr: Expected tau to have one dimension less than input, but got tau.ndim "
            f"equal to {input2.ndim} and input.ndim is equal to {self.ndim}"
        )
    if input3.ndim != self.ndim:
        raise RuntimeError(
            "torch.ormqr: Expected other to have the same number of dimensions as input, but got "
            f"other.ndim equal to {input3.ndim} and input.ndim is equal to {self.ndim}"
        )
    if self.shape[-2] != rows:
        raise RuntimeError("torch.ormqr: input.shape[-2] must be equal to the rows it multiplies")
    same_dtype("torch.ormqr: input, tau and other", self, input2, input3)


@op("ormqr", layout="meta", writes=("exact_dtype", "computes_first"), condition=_ormqr_condition)
def ormqr(
    self: Array, input2: Array, input3: Array, left: bool = True, transpose: bool = False
) -> Array:
    scales, right = input2, input3
    if self.size == 0 or right.size == 0:
        return right
    # All of Q: missing reflectors are the identity.
    rows, known = self.shape[-2], scales.shape[-1]
    batch = jnp.broadcast_shapes(self.shape[:-2], scales.shape[:-1])
    reflectors = jnp.broadcast_to(self[..., :known], (*batch, rows, known))
    scales = jnp.broadcast_to(scales, (*batch, known))
    lead = [(0, 0)] * len(batch)
    whole = lax.linalg.householder_product(
        jnp.pad(reflectors, [*lead, (0, 0), (0, rows - known)]),
        jnp.pad(scales, [*lead, (0, rows - known)]),
    )
    whole = adjoint(whole) if transpose else whole
    return whole @ right if left else right @ whole


# Eigenvalues and singular values ------------------------------------------------------------------


@op(
    "_linalg_eigh",
    layout="meta",
    writes=("exact_dtype", "computes_first"),
    refuses=no_kernel("linalg_eigh_cpu", BOOL, INT, HALF),
)
def eigh(A: Array, UPLO: str = "L", compute_v: bool = True) -> tuple[Array, Array]:
    check_square("linalg.eigh", A)
    if UPLO not in ("L", "l", "U", "u"):
        raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    if A.size == 0:
        vectors = A if compute_v else jnp.zeros((0,), A.dtype)
        return jnp.zeros(A.shape[:-1], real_dtype(A.dtype)), vectors
    lower = UPLO in ("L", "l")
    if not compute_v:
        matrix = _triangle_to_hermitian(A, not lower)
        return jnp.linalg.eigvalsh(matrix, symmetrize_input=False), jnp.zeros((0,), A.dtype)
    vectors, values = lax.linalg.eigh(_triangle_to_hermitian(A, not lower), symmetrize_input=False)
    return values, vectors


def _finite(x: Any) -> Any:
    return abs(x) < np.inf


_NOT_FINITE = "torch.linalg.eig: input tensor should not contain infs or NaNs."


@op("linalg_eig", columns=(1,), values=each("self", _finite, RuntimeError, _NOT_FINITE))
def eig(self: Array) -> tuple[Array, Array]:
    check_square("linalg.eig", self)
    dtype = complex_dtype(self.dtype)
    if self.size == 0:
        return jnp.zeros(self.shape[:-1], dtype), self.astype(dtype)
    values, vectors = jnp.linalg.eig(self)
    return values, vectors


@op("_linalg_eigvals", "linalg_eigvals")
def eigvals(self: Array) -> Array:
    check_square("linalg.eigvals", self)
    if self.size == 0:
        return jnp.zeros(self.shape[:-1], complex_dtype(self.dtype))
    return jnp.linalg.eigvals(self)


_NOT_CONVERGED = (
    "linalg.svd: The algorithm failed to converge because the input matrix contained non-finite "
    "values."
)


@op(
    "_linalg_svd",
    columns=(0, 2),
    writes=("exact_dtype",),
    values=each("A", _finite, np.linalg.LinAlgError, _NOT_CONVERGED),
)
def svd(
    A: Array, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None
) -> tuple[Array, Array, Array]:
    check_square("linalg.svd", A, square=False)
    rows, columns = A.shape[-2:]
    none = jnp.zeros((0,), A.dtype)
    if A.size == 0:
        inner, batch = min(rows, columns), A.shape[:-2]
        values = jnp.zeros((*batch, inner), real_dtype(A.dtype))
        if not compute_uv:
            return none, values, none
        left, right = (rows, columns) if full_matrices else (inner, inner)
        u = jnp.broadcast_to(jnp.eye(rows, left, dtype=A.dtype), (*batch, rows, left))
        vh = jnp.broadcast_to(jnp.eye(right, columns, dtype=A.dtype), (*batch, right, columns))
        return u, values, vh
    if not compute_uv:
        return none, jnp.linalg.svd(A, compute_uv=False), none
    u, values, vh = jnp.linalg.svd(A, full_matrices=full_matrices)
    return u, values, vh


_DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


@op("linalg_lstsq", columns=(0,), writes=("computes_first",))
def lstsq(
    self: Array, b: Array, rcond: float | None = None, driver: str | None = None
) -> tuple[Array, Array, Array, Array]:
    driver = driver or "gelsy"
    if driver not in _DRIVERS:
        raise RuntimeError(
            "torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss)"
        )
    if self.ndim < 2:
        raise RuntimeError("torch.linalg.lstsq: input must have at least 2 dimensions.")
    if b.ndim < 1:
        raise RuntimeError("torch.linalg.lstsq: other must have at least 1 dimension.")
    same_dtype("torch.linalg.lstsq: input and other", self, b)
    vector = self.ndim - 1 == b.ndim and self.shape[:-1] == b.shape
    right = b[..., None] if vector else b
    rows, columns = self.shape[-2:]
    if rows != right.shape[-2]:
        raise RuntimeError("torch.linalg.lstsq: input.size(-2) should match other.size(-2)")
    batch = jnp.broadcast_shapes(self.shape[:-2], right.shape[:-2])
    matrix = jnp.broadcast_to(self, (*batch, rows, columns))
    right = jnp.broadcast_to(right, (*batch, *right.shape[-2:]))
    real = real_dtype(self.dtype)
    cutoff = float(np.finfo(real).eps) * max(rows, columns) if rcond is None else rcond
    if matrix.size == 0:
        solution = jnp.zeros((*batch, columns, right.shape[-1]), self.dtype)
        values = jnp.zeros((*batch, min(rows, columns)), real)
        found = jnp.zeros(batch, jnp.int64)
    else:
        u, values, vh = jnp.linalg.svd(matrix, full_matrices=False)
        kept = values > cutoff * values[..., :1]
        inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)
        solution = adjoint(vh) @ (inverse[..., None] * (adjoint(u) @ right))
        found = kept.sum(-1, dtype=jnp.int64)
    none = jnp.zeros((0,), real)
    residuals = none
    if rows > columns and driver != "gelsy":
        rest = right - matrix @ solution
        residuals = jnp.sum(jnp.real(rest * jnp.conj(rest)), axis=-2)
        full = found == columns
        residuals = jnp.where(full[..., None], residuals, jnp.nan) if full.ndim else residuals
    rank = jnp.zeros((0,), jnp.int64) if driver == "gels" else found
    singular = values if driver in ("gelsd", "gelss") else none
    return (solution[..., 0] if vector else solution), residuals, rank, singular
