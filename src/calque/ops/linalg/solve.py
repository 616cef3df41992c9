"""Linear systems, inverses, determinants and functions of matrices."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from calque.ops.linalg.decompositions import check_square, lu_factors, lu_info, permutation
from calque.ops.table.facts import facts
from calque.ops.table.helpers import wrap_dim
from calque.ops.table.promotion import is_complex, opmath, real_dtype, type_name
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import TensorArgument

# Triangular systems -------------------------------------------------------------------------------


def _broadcast(a: Array, b: Array) -> tuple[Array, Array]:
    """Returns the matrices broadcast to a common batch shape."""
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (
        jnp.broadcast_to(a, (*batch, *a.shape[-2:])),
        jnp.broadcast_to(b, (*batch, *b.shape[-2:])),
    )


def solve_triangle(
    matrix: Array,
    right: Array,
    upper: bool,
    left: bool = True,
    unit: bool = False,
    turned: bool = False,
) -> Array:
    """Solves matrix X = right, or X matrix = right unless `left`; with `turned`, for the
    adjoint."""
    matrix, right = _broadcast(matrix, right)
    if matrix.size == 0 or right.size == 0:
        return jnp.zeros(right.shape, right.dtype)
    return lax.linalg.triangular_solve(
        matrix,
        right,
        left_side=left,
        lower=not upper,
        unit_diagonal=unit,
        transpose_a=turned,
        conjugate_a=turned and is_complex(matrix.dtype),
    )


def _check_product(name: str, matrix: Array, right: Array, left: bool) -> None:
    check_square(name, matrix)
    if right.ndim < 2:
        raise RuntimeError(f"{name}: The input tensor B must have at least 2 dimensions.")
    if matrix.dtype != right.dtype:
        raise RuntimeError(
            f"{name}: Expected A and B to have the same dtype, but found A of type "
            f"{matrix.dtype} and B of type {right.dtype} instead"
        )
    if matrix.shape[-2] != right.shape[-2 if left else -1]:
        raise RuntimeError(
            f"{name}: Incompatible shapes of A and B for the equation "
            f"{'AX = B' if left else 'XA = B'} ({matrix.shape[-2]}x{matrix.shape[-1]} and "
            f"{right.shape[-2]}x{right.shape[-1]})"
        )


@op("linalg_solve_triangular", layout="meta", writes=("exact_dtype",))
def solve_triangular(
    self: Array, B: Array, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    if is_complex(self.dtype) or not is_complex(B.dtype):
        B = B.astype(self.dtype)  # as PyTorch does
    _check_product("linalg.solve_triangular", self, B, left)
    return solve_triangle(self, B, upper, left, unitriangular)


@op("triangular_solve", layout="meta", writes=("exact_dtype", "computes_first"))
def triangular_solve(
    self: Array,
    A: Array,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Array, Array]:
    _check_product("torch.triangular_solve", A, self, True)
    matrix, right = _broadcast(A, self)
    if transpose:
        return solve_triangle(matrix.mT, right, not upper, unit=unitriangular), matrix
    return solve_triangle(matrix, right, upper, unit=unitriangular), matrix


@op("cholesky_solve", "_cholesky_solve_helper")
def cholesky_solve(self: Array, input2: Array, upper: bool = False) -> Array:
    _check_product("cholesky_solve", input2, self, True)
    first = solve_triangle(input2, self, upper, turned=upper)
    return solve_triangle(input2, first, upper, turned=not upper)


facts("cholesky_solve", layout="meta", writes=("copies",))


@op("cholesky_inverse", layout="meta")
def cholesky_inverse(self: Array, upper: bool = False) -> Array:
    check_square("cholesky_inverse", self)
    identity = jnp.broadcast_to(jnp.eye(self.shape[-1], dtype=self.dtype), self.shape)
    return cholesky_solve(identity, self, upper)


# General systems ----------------------------------------------------------------------------------


@op("linalg_lu_solve", layout="meta", writes=("exact_dtype", "computes_first"))
def lu_solve(LU: Array, pivots: Array, B: Array, left: bool = True, adjoint: bool = False) -> Array:
    _check_product("linalg.lu_solve", LU, B, left)
    batch = jnp.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
    right = jnp.broadcast_to(B, (*batch, *B.shape[-2:]))
    if not left:
        # X A = B is A^H X^H = B^H.
        turned = _lu_solve(LU, pivots, jnp.conj(right.mT), not adjoint)
        return jnp.conj(turned.mT)
    return _lu_solve(LU, pivots, right, adjoint)


def _lu_solve(factors: Array, pivots: Array, right: Array, turned: bool) -> Array:
    order = permutation(pivots, factors.shape[-1])
    order = jnp.broadcast_to(order, (*right.shape[:-2], factors.shape[-1]))
    if turned:
        right = solve_triangle(factors, right, upper=True, turned=True)
        right = solve_triangle(factors, right, upper=False, unit=True, turned=True)
        return _take_rows(right, jnp.argsort(order, axis=-1))
    right = solve_triangle(factors, _take_rows(right, order), upper=False, unit=True)
    return solve_triangle(factors, right, upper=True)


_OUTSIDE = "Pivots given to lu_solve must all be {} Did you properly pass the result of lu_factor?"
_OUTSIDE_UNPACKED = (
    "pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive."
    "Did you properly pass the result of lu_factor?"
)


def _pivots_of_solve(LU: TensorArgument, pivots: TensorArgument, **_: Any) -> None:
    def error(bad: int) -> Exception:
        end = "greater or equal to 1." if bad < 1 else "smaller or equal to LU.size(-2)."
        return RuntimeError(_OUTSIDE.format(end))

    if LU.ndim >= 2:
        pivots.require_within(1, LU.shape[-2] + 1, error)


def _pivots_of_unpack(
    LU_data: TensorArgument, LU_pivots: TensorArgument, unpack_pivots: bool = True, **_: Any
) -> None:
    if unpack_pivots and LU_data.ndim >= 2:
        LU_pivots.require_within(
            1, LU_data.shape[-2] + 1, lambda _: RuntimeError(_OUTSIDE_UNPACKED)
        )


facts("linalg_lu_solve", values=_pivots_of_solve)
facts("lu_unpack", values=_pivots_of_unpack)


def _take_rows(array: Array, order: Array) -> Array:
    return jnp.take_along_axis(array, order[..., None], axis=-2) if array.size else array


@op(
    "_linalg_solve_ex",
    layout="meta",
    writes=("exact_dtype", "computes_first"),
    reports="torch.linalg.solve_ex",
)
def solve_ex(
    A: Array, B: Array, left: bool = True, check_errors: bool = False
) -> tuple[Array, Array, Array, Array]:
    check_square("linalg.solve", A)
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and A.shape[:-1] == B.shape)
    right = B[..., None] if vector else B
    if vector and not left:
        raise RuntimeError(
            "linalg.solve: Vector broadcasting of the left hand side is not supported for "
            "left=False"
        )
    factors, pivots = lu_factors(A)
    result = lu_solve(factors, pivots, right, left)
    return (result[..., 0] if vector else result), factors, pivots, lu_info(factors)


@op(
    "linalg_inv_ex",
    layout="meta",
    writes=("exact_dtype", "computes_first"),
    reports="linalg.inv_ex",
)
def inv_ex(A: Array, check_errors: bool = False) -> tuple[Array, Array]:
    check_square("linalg.inv", A)
    if A.size == 0:
        return A, jnp.zeros(A.shape[:-2], jnp.int32)
    factors, pivots = lu_factors(A)
    identity = jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape)
    return lu_solve(factors, pivots, identity), lu_info(factors)


# Determinants -------------------------------------------------------------------------------------


def _parity(pivots: Array, dtype: Any) -> Array:
    """Returns the sign of each permutation of rows."""
    swaps = (pivots != jnp.arange(1, pivots.shape[-1] + 1)).sum(-1)
    return (1 - 2 * (swaps % 2)).astype(dtype)


def _factors_for(A: Array, taken_transposed: bool) -> tuple[Array, Array]:
    """Returns the LU factors of A, or of its transpose, which PyTorch factors if A is
    contiguous."""
    return lu_factors(A.mT if taken_transposed else A)


@op("_linalg_det", writes=("exact_dtype",))
def det(A: Array, taken_transposed: bool = False) -> tuple[Array, Array, Array]:
    check_square("linalg.det", A)
    factors, pivots = _factors_for(A, taken_transposed)
    diagonal = jnp.diagonal(factors, axis1=-2, axis2=-1)
    return _parity(pivots, A.dtype) * jnp.prod(diagonal, axis=-1), factors, pivots


@op("_linalg_slogdet", writes=("exact_dtype",))
def slogdet(A: Array, taken_transposed: bool = False) -> tuple[Array, Array, Array, Array]:
    check_square("linalg.slogdet", A)
    factors, pivots = _factors_for(A, taken_transposed)
    diagonal = jnp.diagonal(factors, axis1=-2, axis2=-1)
    sign = _parity(pivots, A.dtype) * jnp.prod(jnp.sign(diagonal), axis=-1)
    logarithm = jnp.log(jnp.abs(diagonal)).sum(-1).astype(real_dtype(A.dtype))
    return sign, logarithm, factors, pivots


# Functions of matrices and vectors ----------------------------------------------------------------


@op("linalg_matrix_exp")
@opmath
def matrix_exp(self: Array) -> Array:
    check_square("linalg.matrix_exp", self)
    if self.size == 0:
        return self
    if self.shape[-1] == 1:
        return jnp.exp(self)
    return jax.scipy.linalg.expm(self, max_squarings=64)


@op("linalg_cross", writes=("exact_dtype", "apart"))
def cross(self: Array, other: Array, dim: int = -1) -> Array:
    if self.ndim != other.ndim:
        raise RuntimeError("linalg.cross: inputs must have the same number of dimensions.")
    axis = wrap_dim(dim, self.ndim)
    if self.shape[axis] != 3 or other.shape[axis] != 3:
        raise RuntimeError(
            f"linalg.cross: inputs dimension {dim} must have length 3. Got {self.shape[axis]} and "
            f"{other.shape[axis]}"
        )
    a1, a2, a3 = (lax.slice_in_dim(self, i, i + 1, axis=axis) for i in range(3))
    b1, b2, b3 = (lax.slice_in_dim(other, i, i + 1, axis=axis) for i in range(3))
    if self.dtype != other.dtype:
        raise RuntimeError(
            f"expected scalar type {type_name(self.dtype)} but found {type_name(other.dtype)}"
        )
    parts = [a2 * b3 - a3 * b2, a3 * b1 - a1 * b3, a1 * b2 - a2 * b1]
    return jnp.concatenate(parts, axis=axis)


facts("cross", autocast="widest")
