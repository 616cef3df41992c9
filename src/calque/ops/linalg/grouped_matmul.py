"""Matrix products of groups of rows, as in mixtures of experts."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.table.registry import op

_RAGGED_SUM = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (0,)), ((), ())),
    lhs_ragged_dimensions=[1],
    rhs_group_dimensions=[],
)


@op("_grouped_mm")
def grouped_mm(
    self: Array,
    mat2: Array,
    offs: Array | None = None,
    bias: Array | None = None,
    out_dtype: Any = None,
) -> Array:
    """Returns the products of groups; `offs` has the end of each group.

    A 2-D operand is divided into groups: the first along its rows, the second along its columns,
    or, if both are 2-D, along the contracted dimension.
    """
    if not {self.ndim, mat2.ndim} <= {2, 3}:
        raise RuntimeError("grouped_mm takes matrices of 2 or 3 dimensions")
    if bias is not None:
        raise RuntimeError("Bias not supported yet")
    if (offs is None) != (self.ndim == mat2.ndim == 3):
        raise RuntimeError("Have to provide offsets if there is a 2d matrix, or no offset if both")
    if self.shape[-1] != mat2.shape[-2]:
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    dtype = self.dtype if out_dtype is None else out_dtype
    if offs is None:
        return jnp.matmul(self, mat2).astype(dtype)
    sizes = jnp.diff(offs.astype(np.int32), prepend=np.int32(0))
    if mat2.ndim == 3:
        out = lax.ragged_dot(self, mat2, sizes)
    elif self.ndim == 3:
        out = lax.ragged_dot(mat2.T, self.swapaxes(1, 2), sizes).T
    else:
        out = lax.ragged_dot_general(self, mat2, sizes, _RAGGED_SUM)
    return out.astype(dtype)


@op("transformers::grouped_mm_fallback")
def grouped_mm_of_transformers(input: Array, weight: Array, offs: Array) -> Array:
    """Returns the result of transformers' replacement for `_grouped_mm`."""
    return grouped_mm(input, weight, offs)


@op("transformers::grouped_mm_fallback_backward")
def grouped_mm_of_transformers_backward(
    input: Array, weight: Array, offs: Array, grad_output: Array
) -> tuple[Array, Array]:
    given = grouped_mm(grad_output, weight.swapaxes(1, 2), offs)
    return given, grouped_mm(input.T, grad_output, offs)
