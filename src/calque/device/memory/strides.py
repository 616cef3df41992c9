"""How an operator's results lie in memory where they are not row-major.

An array has no strides, so they cost nothing: a result gets those that PyTorch would have given it,
and views of it (`view`, `is_contiguous(memory_format=...)`) answer as on the CPU. Elementwise
operators keep the order of their arguments' axes, images keep `channels_last`, and matrix
decompositions are column-major. Row-major arguments, the common case, are told apart first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import repeat
from typing import Any, NamedTuple

import torch
from jax import Array

from calque.device.memory.cell import META, wrap, wrap_strided
from calque.device.memory.geometry import Ints, contiguous_strides

Strides = Iterable[Ints | None] | None
"""The strides of each result; None for row-major ones."""
Results = Sequence[Any]
"""Arrays, or None."""
Layer = Callable[[Results, Sequence[Any], dict[str, Any]], Strides]
"""The strides of an operator's results, given the results and the arguments."""

Tensor = torch.Tensor
_aten = torch.ops.aten
_META = torch.device("meta")
_IMAGES = {4: torch.channels_last, 5: torch.channels_last_3d}


class _Place(NamedTuple):
    """What PyTorch's Meta kernels see of a tensor."""

    shape: torch.Size
    stride: Ints
    dtype: torch.dtype


def _empty(place: _Place) -> Tensor:
    return _aten.empty_strided.default.redispatch(
        META, place.shape, place.stride, dtype=place.dtype, device=_META
    )


def _tensors(args: Iterable[Any]) -> list[Tensor]:
    found = []
    for value in args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(v for v in value if isinstance(v, Tensor))
    return found


def _row_major(tensors: Iterable[Tensor]) -> bool:
    return all(t.is_contiguous() for t in tensors)


def leaves(result: Any) -> list[Any]:
    """The arrays in a rule's result, and None where there is none."""
    if isinstance(result, tuple | list):
        return [leaf for part in result for leaf in leaves(part)]
    return [result]


def wrap_laid(result: Any, laid: Iterator[Ints | None]) -> Any:
    """The arrays of a rule's result as tensors, in the same tuples and lists, with strides."""
    if isinstance(result, tuple | list):
        return type(result)([wrap_laid(part, laid) for part in result])
    stride = next(laid)
    if result is None:
        return None
    if stride is None or len(stride) != result.ndim:
        return wrap(result)
    return wrap_strided(result, stride)


# The rules ----------------------------------------------------------------------------------------


def elementwise(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """All results in the order of the arguments' axes, the first argument deciding ties."""
    tensors = _tensors((*args, *kwargs.values()))
    if _row_major(tensors):
        return None
    return repeat(_elementwise(tuple([(t.shape, t.stride()) for t in tensors])))


@lru_cache(maxsize=4096)
def _elementwise(places: tuple[tuple[torch.Size, Ints], ...]) -> Ints:
    operators = (_aten.neg.default, _aten.add.Tensor, _aten.addcmul.default)
    tensors = [_empty(_Place(*place, torch.float32)) for place in places[:3]]
    return operators[len(tensors) - 1].redispatch(META, *tensors).stride()


def images(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """Results in `channels_last` where the first tensor is; the others row-major."""
    return _as_images(results, _tensors(args)[:1])


def convolutions(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """As `images`, where any tensor is in `channels_last`."""
    return _as_images(results, _tensors(args))


def _as_images(results: Results, tensors: Sequence[Tensor]) -> Strides:
    for tensor in tensors:
        form = _IMAGES.get(tensor.ndim)
        if form and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=form):
            like = [r is not None and r.ndim == tensor.ndim for r in results]
            rows = zip(results, like, strict=True)
            return [_channels_last(r.shape) if fits else None for r, fits in rows]
    return None


def _channels_last(shape: Ints) -> Ints:
    batch, channels, *space = shape
    outer, *inner, last = contiguous_strides((batch, *space, channels))
    return (outer, last, *inner)


def columns(
    which: Iterable[int], results: Results, args: Sequence[Any], kwargs: dict[str, Any]
) -> Strides:
    """Some of the results with their last two axes column-major."""
    return [
        _column_major(r.shape) if i in which and r.ndim > 1 else None for i, r in enumerate(results)
    ]


def _column_major(shape: Ints) -> Ints:
    *batch, rows, width = shape
    *outer, last, first = contiguous_strides((*batch, width, rows))
    return (*outer, first, last)


def positions(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """The table of `nonzero`, which is made axis by axis."""
    return [(1, r.shape[0]) for r in results if r is not None]


def sequences(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """A recurrent layer's outputs, which are made step by step also where the batch is first."""
    out, *others = results
    if out is None or args[-1] is not True:
        return None
    batch, _, width = out.shape
    return [(width, batch * width, 1), *[None] * len(others)]


def attention_of_the_cpu(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """The output as the queries; the log-sum-exp, and gradients, with the heads innermost."""
    if len(results) == 2:
        out, logsumexp = results
        return [of_attention(out, args[0]), _heads_inside(logsumexp.shape)]
    return [_heads_inside(r.shape) for r in results]


def attention(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """The output as the queries."""
    return [of_attention(results[0], args[0])]


def _heads_inside(shape: Ints) -> Ints:
    batch, heads, queries, *rest = shape
    outer, row, head, *inner = contiguous_strides((batch, queries, heads, *rest))
    return (outer, head, row, *inner)


def of_attention(result: Array, query: Tensor) -> Ints:
    """Attention's result in the order of the query's axes."""
    if query.is_contiguous():
        return contiguous_strides(result.shape)
    like = _elementwise(((query.shape, query.stride()),))
    return _transformed(result.shape, like, [])


def transforms(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """Fourier transforms: the transformed axes innermost, the others in the argument's order."""
    (result,), self, given = results, args[0], args[1]
    if result is None or not result.size or not given:
        return None
    dims = [d % self.ndim for d in given]
    stride: Ints = self.stride()
    if not self.is_complex():  # the half axis comes last
        dims = [*_sorted(dims[:-1], stride), dims[-1]]
    elif not isinstance(args[3], bool):  # to real numbers: the last axis in a pass of its own
        if len(dims) > 1:
            stride = _transformed(self.shape, stride, _sorted(dims[:-1], stride))
        dims = dims[-1:]
    else:
        dims = _sorted(dims, stride)
    return [_transformed(result.shape, stride, dims)]


def _sorted(dims: Iterable[int], stride: Ints) -> list[int]:
    return sorted(dims, key=lambda d: -stride[d])


def _transformed(shape: Ints, stride: Ints, dims: list[int]) -> Ints:
    order = [*_sorted(set(range(len(shape))) - set(dims), stride), *dims]
    steps = contiguous_strides([shape[d] for d in order])
    return tuple(steps[order.index(d)] for d in range(len(shape)))


def asked(name: str, results: Results, args: Sequence[Any], kwargs: Any) -> Strides:
    """As PyTorch's own Meta kernel of the operator lays them."""
    return _ask(name, tuple(map(_key, args)), tuple((n, _key(v)) for n, v in kwargs.items()))


def followed(name: str, results: Results, args: Sequence[Any], kwargs: Any) -> Strides:
    """As `asked`; row-major where the arguments are."""
    if _row_major(_tensors((*args, *kwargs.values()))):
        return None
    return asked(name, results, args, kwargs)


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _Place(value.shape, value.stride(), value.dtype)
    return tuple(map(_key, value)) if isinstance(value, list | tuple) else value


def _unkey(key: Any) -> Any:
    if isinstance(key, _Place):
        return _empty(key)
    return list(map(_unkey, key)) if isinstance(key, tuple) else key


@lru_cache(maxsize=4096)
def _ask(name: str, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Strides:
    named = {n: _unkey(v) for n, v in kwargs}
    try:
        found = _overload(name).redispatch(META, *map(_unkey, args), **named)
    except RuntimeError:  # a Meta kernel that needs values, or that PyTorch has not got
        return None
    parts = found if isinstance(found, list | tuple) else (found,)
    return [part.stride() if isinstance(part, Tensor) else None for part in parts]


def _overload(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(_aten, packet), overload or "default")


# The tables ---------------------------------------------------------------------------------------


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OWN: dict[str, Layer] = {
    "_fft_c2c": transforms,
    "_fft_c2r": transforms,
    "_fft_r2c": transforms,
    "_scaled_dot_product_flash_attention_for_cpu": attention_of_the_cpu,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention_of_the_cpu,
    "gru.input": sequences,
    "lstm.input": sequences,
    "nonzero": positions,
    "rnn_relu.input": sequences,
    "rnn_tanh.input": sequences,
    "scaled_dot_product_attention": attention,
}
_COLUMNS = {
    "_linalg_svd": (0, 2),
    "geqrf": (0,),
    "linalg_eig": (1,),
    "linalg_lstsq": (0,),
}
"""Results that are column-major whatever the arguments are."""

_ASKED = _words(
    """_linalg_eigh _linalg_solve_ex cholesky_inverse cholesky_solve
    linalg_cholesky_ex linalg_householder_product linalg_inv_ex linalg_lu linalg_lu_factor_ex
    linalg_lu_solve linalg_qr linalg_solve_triangular ormqr rot90 triangular_solve"""
)
"""Operators whose results need not be row-major where their arguments are."""

_FOLLOWED = _words(
    """_adaptive_avg_pool2d _adaptive_avg_pool3d _unsafe_index.Tensor _unsafe_index_put
    _unsafe_masked_index_put_accumulate _upsample_bicubic2d_aa _upsample_bilinear2d_aa
    _upsample_nearest_exact2d _upsample_nearest_exact3d adaptive_max_pool2d
    adaptive_max_pool3d addr as_strided_scatter avg_pool2d avg_pool3d binary_cross_entropy
    binary_cross_entropy_with_logits cat constant_pad_nd diagonal_scatter flip glu
    index.Tensor index_fill.int_Scalar index_fill.int_Tensor index_put max_pool2d_with_indices
    max_pool3d_with_indices put select_scatter slice_scatter sort sort.stable stack
    upsample_bicubic2d upsample_bilinear2d upsample_nearest2d upsample_nearest3d
    upsample_trilinear3d"""
)
"""Operators whose results follow their arguments in a way of their own."""

_IMAGES_KEPT = _words(
    """_batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional
    _native_batch_norm_legit _native_batch_norm_legit.no_stats
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training channel_shuffle
    max_unpool2d native_batch_norm native_group_norm pixel_shuffle pixel_unshuffle
    reflection_pad2d replication_pad2d roll"""
)
_CONVOLUTIONS = _words(
    """_adaptive_avg_pool2d_backward _upsample_bicubic2d_aa_backward
    _upsample_bilinear2d_aa_backward _upsample_nearest_exact2d_backward
    adaptive_max_pool2d_backward avg_pool2d_backward batch_norm_backward convolution
    convolution_backward convolution_backward_overrideable convolution_overrideable
    max_pool2d_with_indices_backward max_pool3d_with_indices_backward
    native_batch_norm_backward reflection_pad2d_backward replication_pad2d_backward
    upsample_bilinear2d_backward upsample_nearest2d_backward upsample_trilinear3d_backward"""
)
_ELEMENTWISE = _words(
    """_add_relu.Scalar _add_relu.Tensor _prelu_kernel _prelu_kernel_backward complex
    elu_backward fill.Scalar fill.Tensor floor_divide floor_divide.Scalar hardshrink_backward
    hardsigmoid_backward hardswish hardswish_backward hardtanh_backward huber_loss
    leaky_relu_backward mish_backward mse_loss native_dropout polar rrelu_with_noise
    rrelu_with_noise_backward rsub.Tensor smooth_l1_loss soft_margin_loss softplus_backward
    softshrink_backward"""
)
"""Elementwise operators without PyTorch's tag of that name."""

_NOT_ELEMENTWISE = frozenset(("log_sigmoid_forward", "masked_fill.Scalar", "masked_fill.Tensor"))


def layer_of(name: str) -> Layer | None:
    """How the results of an operator (with its namespace) lie; None where always row-major."""
    if not name.startswith("aten::"):
        return None
    short = name.removeprefix("aten::")
    if short in _OWN:
        return _OWN[short]
    if short in _COLUMNS:
        return partial(columns, _COLUMNS[short])
    if short in _ASKED:
        return partial(asked, name)
    if short in _FOLLOWED:
        return partial(followed, name)
    if short in _IMAGES_KEPT:
        return images
    if short in _CONVOLUTIONS:
        return convolutions
    if short in _ELEMENTWISE:
        return elementwise
    tagged = short not in _NOT_ELEMENTWISE and torch.Tag.pointwise in _overload(name).tags
    return elementwise if tagged else None


def always(name: str) -> bool:
    """Whether an operator's results need not be row-major where its arguments are."""
    short = name.removeprefix("aten::")
    own = short in _OWN or short in _COLUMNS or short in _ASKED
    return own and name.startswith("aten::")
