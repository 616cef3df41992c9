"""Eigenvalues, singular values and least squares."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.linalg.decompositions import adjoint, check_square, triangle_to_hermitian
from calque.ops.linalg.matmul import same_dtype
from calque.ops.table.facts import no_kernel
from calque.ops.table.promotion import (
    BOOL,
    HALF,
    INT,
    complex_dtype,
    real_dtype,
)
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import each


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
        matrix = triangle_to_hermitian(A, not lower)
        return jnp.linalg.eigvalsh(matrix, symmetrize_input=False), jnp.zeros((0,), A.dtype)
    vectors, values = lax.linalg.eigh(triangle_to_hermitian(A, not lower), symmetrize_input=False)
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
