"""Products of matrices and vectors.

Half-precision products accumulate in float32 inside XLA. As in BLAS, a `beta` of zero drops the
added operand, including NaNs, and an `alpha` of zero the product; so both are static.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.table.facts import facts, no_kernel
from calque.ops.table.linear_resample import widened
from calque.ops.table.number_range import Holds
from calque.ops.table.promotion import BOOL, RefusedDtype, check_factor, type_name
from calque.ops.table.registry import op

_SCALED = ("alpha", "beta")
_FACTORS = Holds(*_SCALED, like="self")
_LOOPED = 400  # below this many multiplications, PyTorch's `baddbmm` does not use BLAS


def _check_same_dtype(x: Array, y: Array) -> None:
    if x.dtype != y.dtype:
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {x.dtype} != {y.dtype}"
        )
    if x.dtype == jnp.bool_:
        raise RefusedDtype("matrix products are not implemented for 'Bool'")


def _check_matrices(x: Array, y: Array) -> None:
    _check_same_dtype(x, y)
    if x.ndim != 2 or y.ndim != 2:
        raise RuntimeError(f"mat1 and mat2 must be matrices, got {x.ndim}-D and {y.ndim}-D tensors")
    if x.shape[1] != y.shape[0]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({x.shape[0]}x{x.shape[1]} and "
            f"{y.shape[0]}x{y.shape[1]})"
        )


def _check_batches(x: Array, y: Array) -> None:
    _check_same_dtype(x, y)
    if x.ndim != 3 or y.ndim != 3:
        raise RuntimeError("batch1 and batch2 must be 3D tensors")
    if x.shape[0] != y.shape[0] or x.shape[2] != y.shape[1]:
        raise RuntimeError(
            "Expected size for first two dimensions of batch2 tensor to be: "
            f"[{x.shape[0]}, {x.shape[2]}] but got: [{y.shape[0]}, {y.shape[1]}]."
        )


def _check_vectors(x: Array, y: Array) -> None:
    if x.ndim != 1 or y.ndim != 1:
        raise RuntimeError(f"1D tensors expected, but got {x.ndim}D and {y.ndim}D tensors")
    if x.dtype != y.dtype:
        raise RuntimeError(
            f"dot : expected both vectors to have same dtype, but found {x.dtype} and {y.dtype}"
        )
    if x.shape != y.shape:
        raise RuntimeError(
            "inconsistent tensor size, expected tensor "
            f"[{x.shape[0]}] and src [{y.shape[0]}] to have the same number of elements"
        )


def _scaled_sum(added: Array, product: Array, beta: Any, alpha: Any, by_blas: bool = True) -> Array:
    """Returns `beta * added + alpha * product`, without multiplications by one."""
    dtype = product.dtype
    if jnp.broadcast_shapes(added.shape, product.shape) != product.shape:
        raise RuntimeError(
            f"The expanded size of the tensor {list(product.shape)} must match the existing size "
            f"{list(added.shape)}"
        )
    drops = by_blas and dtype.itemsize >= 4
    if isinstance(alpha, Array):  # traced
        scaled = product * alpha.astype(dtype)
        product = jnp.where(alpha == 0, 0, scaled) if drops else scaled
    elif alpha == 0 and drops:
        product = jnp.zeros_like(product)
    elif alpha != 1:
        product = product * jnp.asarray(alpha).astype(dtype)
    added = added.astype(dtype)
    if isinstance(beta, Array):
        return jnp.where(beta == 0, product, product + added * beta.astype(dtype))
    if beta == 0:
        return product
    return product + (added if beta == 1 else added * jnp.asarray(beta).astype(dtype))


@op(
    "mm",
    "mm.dtype",
    writes=("exact_dtype", "computes_first"),
    refuses=no_kernel("addmm_impl_cpu_", BOOL),
)
def mm(self: Array, mat2: Array, out_dtype: Any = None) -> Array:
    _check_matrices(self, mat2)
    return jnp.matmul(self, mat2, preferred_element_type=out_dtype)


facts("mm", autocast="lower", moved=0)


@op("bmm", "bmm.dtype", writes=("exact_dtype", "computes_first"))
def bmm(self: Array, mat2: Array, out_dtype: Any = None) -> Array:
    _check_batches(self, mat2)
    return jnp.matmul(self, mat2, preferred_element_type=out_dtype)


facts("bmm", autocast="lower")


@op("_int_mm")
def int_mm(self: Array, mat2: Array) -> Array:
    _check_matrices(self, mat2)
    return jnp.matmul(self, mat2, preferred_element_type=np.dtype("int32"))


@op("mv", writes=("exact_dtype",), autocast="lower")
def mv(self: Array, vec: Array) -> Array:
    _check_same_dtype(self, vec)
    if self.ndim != 2 or vec.ndim != 1 or self.shape[1] != vec.shape[0]:
        raise RuntimeError(f"size mismatch, got input {self.shape}, vec {vec.shape}")
    return jnp.matmul(self, vec)


@op("dot", writes=("exact_dtype",), autocast="widest", refuses=no_kernel("dot", BOOL))
def dot(self: Array, tensor: Array) -> Array:
    _check_vectors(self, tensor)
    return jnp.dot(self, tensor)


@op("vdot", writes=("exact_dtype",), autocast="widest")
def vdot(self: Array, other: Array) -> Array:
    _check_vectors(self, other)
    return jnp.vdot(self, other)


def same_dtype(what: str, *arrays: Any) -> None:
    """Raise unless all arrays have one dtype."""
    if len({a.dtype for a in arrays}) > 1:
        got = ", ".join(type_name(a.dtype) for a in arrays)
        raise RuntimeError(f"{what} must have the same dtype, but got {got}")


def _products_condition(self: Any, x: Any, y: Any, *_: Any, **__: Any) -> None:
    same_dtype("the tensors of a matrix product and what it is added to", self, x, y)


@op(
    "addmm",
    static=_SCALED,
    numbers=_FACTORS,
    writes=("exact_dtype", "computes_first"),
    writes_in_place=("computes_first",),
    autocast="lower",
    moved=0,
    condition=_products_condition,
)
def addmm(self: Array, mat1: Array, mat2: Array, beta: Any = 1, alpha: Any = 1) -> Array:
    _check_matrices(mat1, mat2)
    return _scaled_sum(self, jnp.matmul(mat1, mat2), beta, alpha)


@op(
    "addmm.dtype",
    static=_SCALED,
    numbers=_FACTORS,
    writes=("exact_dtype", "computes_first"),
    writes_in_place=("computes_first",),
)
def addmm_dtype(
    self: Array, mat1: Array, mat2: Array, out_dtype: Any, beta: Any = 1, alpha: Any = 1
) -> Array:
    return _scaled_sum(self, mm(mat1, mat2, out_dtype), beta, alpha)


@op("_addmm_activation", static=_SCALED, numbers=_FACTORS, condition=_products_condition)
def addmm_activation(
    self: Array, mat1: Array, mat2: Array, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False
) -> Array:
    total = addmm(self, mat1, mat2, beta, alpha)
    return jax.nn.gelu(total, approximate=True) if use_gelu else jax.nn.relu(total)


@op(
    "baddbmm",
    static=_SCALED,
    numbers=_FACTORS,
    writes=("exact_dtype", "computes_first"),
    writes_in_place=("computes_first",),
    autocast="lower",
    condition=_products_condition,
)
def baddbmm(self: Array, batch1: Array, batch2: Array, beta: Any = 1, alpha: Any = 1) -> Array:
    product = bmm(batch1, batch2)
    by_blas = batch1.shape[2] * product.shape[1] * product.shape[2] >= _LOOPED
    return _scaled_sum(self, product, beta, alpha, by_blas)


@op(
    "baddbmm.dtype",
    static=_SCALED,
    numbers=_FACTORS,
    writes=("exact_dtype", "computes_first"),
    writes_in_place=("computes_first",),
)
def baddbmm_dtype(
    self: Array, batch1: Array, batch2: Array, out_dtype: Any, beta: Any = 1, alpha: Any = 1
) -> Array:
    return _scaled_sum(self, bmm(batch1, batch2, out_dtype), beta, alpha)


@op(
    "addbmm",
    static=_SCALED,
    numbers=_FACTORS,
    writes=("exact_dtype",),
    autocast="lower",
    condition=_products_condition,
)
def addbmm(self: Array, batch1: Array, batch2: Array, beta: Any = 1, alpha: Any = 1) -> Array:
    """Returns the sum of the products over the batch; half precision is rounded once, at the
    end."""
    _check_batches(batch1, batch2)
    wide = widened(batch1).dtype
    product = jnp.einsum("bij,bjk->ik", batch1, batch2, preferred_element_type=wide)
    by_blas = batch1.dtype == wide
    return _scaled_sum(self, product, beta, alpha, by_blas).astype(batch1.dtype)


@op(
    "addmv",
    static=_SCALED,
    numbers=_FACTORS,
    writes=("exact_dtype",),
    autocast="lower",
    condition=_products_condition,
)
def addmv(self: Array, mat: Array, vec: Array, beta: Any = 1, alpha: Any = 1) -> Array:
    return _scaled_sum(self, mv(mat, vec), beta, alpha)


@op("addr", static=_SCALED, numbers=_FACTORS, layout="meta_if_strided", autocast="lower")
def addr(self: Array, vec1: Array, vec2: Array, beta: Any = 1, alpha: Any = 1) -> Array:
    if vec1.ndim != 1 or vec2.ndim != 1:
        raise RuntimeError(
            f"addr: Expected 1-D argument vec1 and vec2, but got {vec1.ndim}-D and {vec2.ndim}-D"
        )
    dtype = jnp.promote_types(self.dtype, jnp.promote_types(vec1.dtype, vec2.dtype))
    check_factor("beta", beta, dtype)
    check_factor("alpha", alpha, dtype)
    outer = vec1.astype(dtype)[:, None] * vec2.astype(dtype)[None, :]
    if dtype == jnp.bool_:
        outer = outer & bool(alpha)
        return outer | self if beta else outer
    return _scaled_sum(self, outer, beta, alpha, by_blas=False)


@op("_trilinear")
def trilinear(
    i1: Array,
    i2: Array,
    i3: Array,
    expand1: Any,
    expand2: Any,
    expand3: Any,
    sumdim: Any,
    unroll_dim: int = 1,
) -> Array:
    """Returns the sum over `sumdim` of the product of three tensors, after inserting axes of size
    one."""
    ndim = i1.ndim + len(expand1)
    axes = [[d for d in range(ndim) if d not in e] for e in (expand1, expand2, expand3)]
    summed = {d % ndim for d in sumdim}
    kept = [d for d in range(ndim) if d not in summed]
    wide = [widened(i) for i in (i1, i2, i3)]  # two products, one rounding
    total = jnp.einsum(wide[0], axes[0], wide[1], axes[1], wide[2], axes[2], kept)
    return total.astype(jnp.result_type(i1, i2, i3))


facts("bilinear tensordot", autocast="widest")
facts("chain_matmul einsum linalg_multi_dot linalg_vecdot linear matmul", autocast="lower")
