"""What PyTorch checks and JAX does not: conditions on the shapes, dtypes and options of a rule.

A condition is a function of a rule's own arguments, called before the rule is traced; it raises
what PyTorch raises. Rules check by themselves what they need to know anyway.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from calque.ops.table import refused
from calque.ops.table.helpers import wrap_dim, wrap_dims
from calque.ops.table.promotion import category, is_complex, is_float, is_integral, spoken

Condition = Callable[..., None]
CONDITIONS: dict[str, Condition] = {}
_HALF = (np.dtype("float16"), np.dtype(jnp.bfloat16))


def check(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise what PyTorch raises for the arguments of a rule, as far as tables and conditions tell.

    Args:
        name: the rule.
        args, kwargs: its arguments, arrays for tensors.
    """
    refused.check(name, args)
    condition = CONDITIONS.get(name)
    if condition is not None:
        condition(*args, **kwargs)


def _condition(*names: str) -> Callable[[Condition], Condition]:
    def register(function: Condition) -> Condition:
        for name in names:
            CONDITIONS[f"aten::{name}"] = function
        return function

    return register


def _same_dtype(what: str, *arrays: Any) -> None:
    if len({a.dtype for a in arrays}) > 1:
        got = ", ".join(spoken(a.dtype) for a in arrays)
        raise RuntimeError(f"{what} must have the same dtype, but got {got}")


@_condition("addmm", "addmv", "baddbmm", "addbmm", "_addmm_activation")
def _products(self: Any, x: Any, y: Any, *_: Any, **__: Any) -> None:
    _same_dtype("the tensors of a matrix product and what it is added to", self, x, y)


def _parameters_of(input: Any, *parameters: Any) -> None:
    """Normalizations take parameters of the input's dtype, or float32 ones of half precision."""
    for parameter in parameters:
        if parameter is None or parameter.dtype == input.dtype:
            continue
        if input.dtype not in _HALF or parameter.dtype != jnp.float32:
            raise RuntimeError(
                f"mixed dtype (CPU): expect parameter to have scalar type of {spoken(input.dtype)}"
            )


@_condition("native_layer_norm")
def _layer_norm(input: Any, shape: Any, weight: Any, bias: Any, *_: Any, **__: Any) -> None:
    _parameters_of(input, weight, bias)


@_condition("native_batch_norm", "_native_batch_norm_legit")
def _batch_norm(
    input: Any, weight: Any, bias: Any, mean: Any, var: Any, *_: Any, **__: Any
) -> None:
    _parameters_of(input, weight, bias, mean, var)


@_condition("native_group_norm")
def _group_norm(input: Any, weight: Any, bias: Any, *_: Any, **__: Any) -> None:
    _parameters_of(input, weight, bias)


@_condition("grid_sampler_2d", "grid_sampler_3d")
def _grid(input: Any, grid: Any, *_: Any, **__: Any) -> None:
    if input.dtype != grid.dtype:
        raise RuntimeError(
            f"expected scalar type {spoken(input.dtype)} but found {spoken(grid.dtype)}"
        )


@_condition("_softmax", "_log_softmax")
def _softmax(self: Any, dim: int, *_: Any, **__: Any) -> None:
    wrap_dim(dim, self.ndim)


@_condition("roll")
def _roll(self: Any, shifts: Any, dims: Any = ()) -> None:
    if self.ndim == 0 and len(dims):
        raise IndexError(f"Dimension specified as {dims[0]} but tensor has no dimensions")


@_condition("t_copy")
def _t(self: Any) -> None:
    if self.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {self.ndim}D")


@_condition("narrow_copy")
def _narrow(self: Any, dim: int, start: int, length: int) -> None:
    if dim >= max(self.ndim, 1):
        raise RuntimeError(f"narrow_copy: expected dim < {self.ndim}, but got {dim}")
    size = self.shape[wrap_dim(dim, self.ndim)] if self.ndim else 0
    if self.ndim and not -size <= start <= size:
        raise IndexError(
            f"start out of range (expected to be in range of [-{size}, {size}], but got {start})"
        )


@_condition("kthvalue")
def _kthvalue(self: Any, k: int, dim: int = -1, *_: Any, **__: Any) -> None:
    dim = wrap_dim(dim, self.ndim)
    if self.ndim and self.shape[dim] == 0:
        raise IndexError(f"kthvalue(): Expected reduction dim {dim} to have non-zero size.")


@_condition("argmax", "argmin")
def _argument(self: Any, dim: int | None = None, *_: Any, **__: Any) -> None:
    if dim is not None:
        wrap_dims(dim, self.ndim)
    if dim is None and self.size == 0:
        raise IndexError(
            "argmax() and argmin(): Expected reduction dim to be specified for input.numel() == 0."
        )


@_condition("amax", "amin")
def _extreme(self: Any, dim: Any = (), *_: Any, **__: Any) -> None:
    if self.size == 0 and not len(dim):
        raise RuntimeError(
            "amax() and amin(): Expected reduction dim to be specified for input.numel() == 0. "
            "Specify the reduction dim with the 'dim' argument."
        )


@_condition("rand", "randn", "rand.generator", "randn.generator")
def _size(size: Any, *_: Any, **__: Any) -> None:
    if any(n < 0 for n in size):
        raise RuntimeError(f"Trying to create tensor with negative dimension: {list(size)}")


@_condition("tril_indices", "triu_indices")
def _indices(row: int, col: int, *_: Any, **__: Any) -> None:
    for name, n in (("row", row), ("col", col)):
        if n < 0:
            raise RuntimeError(f"{name} must be non-negative, got {n}")


@_condition("histogram.bin_ct")
def _histogram(self: Any, bins: int = 100, *_: Any, **__: Any) -> None:
    if bins <= 0:
        raise RuntimeError(f"torch.histogram(): bins must be > 0, but got {bins} for dimension 0")


@_condition("_histogramdd_bin_edges", "_histogramdd_from_bin_cts")
def _histogramdd(self: Any, bins: Any, *_: Any, **__: Any) -> None:
    if len(bins) != self.shape[-1]:
        raise RuntimeError(
            "histogramdd: The size of bins must be equal to the innermost dimension of the input."
        )


@_condition("linalg_vector_norm")
def _vector_norm(
    self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> None:
    if dtype is not None and is_integral(dtype):
        raise RuntimeError(
            "linalg.vector_norm: dtype should be floating point or complex, but got "
            f"{spoken(dtype)}"
        )


@_condition("ormqr")
def _ormqr(self: Any, input2: Any, input3: Any, left: bool = True, *_: Any, **__: Any) -> None:
    if min(self.ndim, input3.ndim) < 2:
        raise RuntimeError("torch.ormqr: input and other must have at least 2 dimensions.")
    rows, scales = input3.shape[-2 if left else -1], input2.shape[-1]
    if scales > self.shape[-1]:
        raise RuntimeError(
            "torch.ormqr: tau.shape[-1] must be less than or equal to input.shape[-1]"
        )
    if self.shape[-2] != rows:
        raise RuntimeError("torch.ormqr: input.shape[-2] must be equal to the rows it multiplies")


@_condition("embedding")
def _embedding(weight: Any, indices: Any, *_: Any, **__: Any) -> None:
    if weight.ndim != 2:
        raise RuntimeError("'weight' must be 2-D")


# Indices ------------------------------------------------------------------------------------------


@_condition("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(self: Any, dim: int, index: Any, value: Any) -> None:
    if index.dtype not in (jnp.int64, jnp.int32):
        raise IndexError("index_fill_(): Expected dtype int64 for index.")
    if is_complex(jnp.result_type(value)) and not is_complex(self.dtype):
        raise RuntimeError(
            "index_fill_(): Converting complex Scalar to non-complex type is not supported"
        )


@_condition("index_copy")
def _index_copy(self: Any, dim: int, index: Any, source: Any) -> None:
    along = source.shape[wrap_dim(dim, source.ndim)] if source.ndim else 1
    if index.ndim < 2 and source.ndim == self.ndim and index.size != along:
        raise IndexError(
            f"index_copy_(): Number of indices ({index.size}) should be equal to "
            f"source.size(dim) ({along})"
        )


@_condition("put")
def _put(self: Any, index: Any, source: Any, *_: Any, **__: Any) -> None:
    if index.dtype != jnp.int64:
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {index.dtype}")
    if self.dtype == source.dtype and index.size != source.size:
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source.size}, index.numel() = {index.size}"
        )


def _known(reduce: str, names: tuple[str, ...]) -> None:
    if reduce not in names:
        raise RuntimeError(f"reduce argument must be one of {', '.join(names)}, got {reduce}.")


@_condition("scatter_reduce.two")
def _scatter_reduce(
    self: Any, dim: int, index: Any, src: Any, reduce: str, *_: Any, **__: Any
) -> None:
    _known(reduce, ("sum", "prod", "mean", "amax", "amin"))


@_condition("index_reduce")
def _index_reduce(
    self: Any, dim: int, index: Any, source: Any, reduce: str, *_: Any, **__: Any
) -> None:
    _known(reduce, ("prod", "mean", "amax", "amin"))


@_condition("masked_scatter")
def _masked_scatter(self: Any, mask: Any, source: Any) -> None:
    if mask.dtype != jnp.bool_:
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )


# Losses and layers --------------------------------------------------------------------------------


@_condition("binary_cross_entropy")
def _bce(self: Any, target: Any, *_: Any, **__: Any) -> None:
    if self.dtype != target.dtype:
        raise RuntimeError(f"Found dtype {spoken(target.dtype)} but expected {spoken(self.dtype)}")


@_condition("binary_cross_entropy_with_logits")
def _bce_with_logits(self: Any, target: Any, *_: Any, **__: Any) -> None:
    if category(target.dtype) < category(self.dtype):
        raise RuntimeError(
            f"result type {spoken(self.dtype)} can't be cast to the desired output type "
            f"{spoken(target.dtype)}"
        )


@_condition("nll_loss_forward", "nll_loss2d_forward")
def _nll(self: Any, target: Any, weight: Any, *_: Any, **__: Any) -> None:
    if is_integral(target.dtype) and target.dtype not in (jnp.int64, jnp.uint8):
        raise RuntimeError(
            f"expected target dtype to be Long or Byte, but got {spoken(target.dtype)}"
        )
    if weight is not None and is_float(self.dtype) and weight.dtype != self.dtype:
        raise RuntimeError(
            f"expected scalar type {spoken(self.dtype)} but found {spoken(weight.dtype)}"
        )


@_condition("convolution", "convolution_overrideable")
def _convolution(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> None:
    if 0 in weight.shape[2:]:
        raise RuntimeError(
            f"kernel size should be greater than zero, but got {list(weight.shape[2:])}"
        )
    if not transposed:
        return
    count = weight.ndim - 2
    extra, step, gap = (
        list(v) * count if len(v) == 1 else list(v) for v in (output_padding, stride, dilation)
    )
    if any(e >= max(s, g) for e, s, g in zip(extra, step, gap, strict=False)):
        raise RuntimeError(
            "output padding must be smaller than either stride or dilation, but got "
            f"output_padding {extra}, stride {step}, dilation {gap}"
        )


@_condition("avg_pool2d")
def _avg_pool(self: Any, *_: Any, **__: Any) -> None:
    if self.ndim < 3:
        wrap_dim(-3, self.ndim)


@_condition("max_pool3d_with_indices")
def _max_pool(self: Any, *_: Any, **__: Any) -> None:
    if self.ndim in (4, 5) and (self.ndim == 4 or self.shape[0]) and 0 in self.shape[-4:]:
        raise RuntimeError(
            "max_pool3d_with_indices: Expected input's non-batch dimensions to have positive "
            f"length, but input has a shape of {list(self.shape)}"
        )
