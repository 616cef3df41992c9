"""The memory layouts of operators' results that are not row-major.

Arrays have no strides, so strides cost nothing: a result gets those of PyTorch's result, so that
`view` and `is_contiguous(memory_format=...)` behave as on the CPU. Elementwise operators keep the
order of their arguments' axes, images keep `channels_last`, and matrix decompositions are
column-major. Row-major arguments, the common case, are checked first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import count, repeat
from typing import Any, NamedTuple

import torch
from jax import Array

from calque.device.memory import axis_order, kernel_choice
from calque.device.memory.geometry import Ints, contiguous_strides
from calque.device.memory.wrapping import META, is_row_major, wrap, wrap_strided
from calque.ops.table.facts import fact_of
from calque.upstream.torch_internals import OpOverload

Strides = Iterable[Ints | None] | None
"""The strides of each result; None for row-major ones."""
Results = Sequence[Any]
"""Arrays, or None."""
Layer = Callable[[Results, Sequence[Any], dict[str, Any]], Strides]
"""Returns the strides of an operator's results, given the results and the arguments."""

Tensor = torch.Tensor
_aten = torch.ops.aten
_META = torch.device("meta")
_IMAGE_RANKS = (4, 5)
_NONE: frozenset[int] = frozenset()


class _Place(NamedTuple):
    """The attributes of a tensor that PyTorch's Meta kernels read."""

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
    return all(map(is_row_major, tensors))


def leaves(result: Any) -> list[Any]:
    """Returns the arrays in a rule's result, and None for missing ones."""
    if isinstance(result, tuple | list):
        return [leaf for part in result for leaf in leaves(part)]
    return [result]


def wrap_laid(result: Any, laid: Iterator[Ints | None]) -> Any:
    """Wraps the arrays of a rule's result as tensors with strides, in the same tuples and lists."""
    if isinstance(result, tuple | list):
        return type(result)([wrap_laid(part, laid) for part in result])
    stride = next(laid)
    if result is None:
        return None
    if stride is None or len(stride) != result.ndim:
        return wrap(result)
    return wrap_strided(result, stride)


# The rules ----------------------------------------------------------------------------------------


def elementwise(
    results: Results, args: Sequence[Any], kwargs: dict[str, Any], operands: frozenset[int] = _NONE
) -> Strides:
    """All results have the axis order of the arguments; the first argument decides ties.

    Args:
        results, args, kwargs: those of the call.
        operands: the positions at which PyTorch treats a number as a tensor without axes.
    """
    tensors = _tensors((*args, *kwargs.values()))
    if _row_major(tensors):
        return None
    places: list[axis_order.Place] = [(t.shape, t.stride()) for t in tensors]
    if any(place < len(args) and isinstance(args[place], int | float) for place in operands):
        places.append(((), ()))
    return repeat(axis_order.of_elementwise(tuple(places)))


def reals(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """Like `elementwise` for real numbers; row-major for complex ones."""
    return None if args[0].is_complex() else elementwise(results, args, kwargs)


def copies(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """The result has the strides of a copy of the first argument."""
    self = args[0]
    return None if is_row_major(self) else [axis_order.of_copy(self.shape, self.stride())]


def each(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """Like `elementwise` over lists: each result follows the tensors at its position."""
    given = (*args, *kwargs.values())
    if _row_major(_tensors(given)):
        return None
    rows = ([v[i] if isinstance(v, list | tuple) else v for v in given] for i in count())
    laid = (elementwise((result,), row, {}) for result, row in zip(results, rows, strict=False))
    return [None if stride is None else next(iter(stride)) for stride in laid]


def images(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """Results are `channels_last` if the first tensor is, otherwise row-major."""
    return _as_images(results, _tensors(args)[:1])


def large_images(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """Like `images`, but row-major if the first tensor is both, as for a single pixel."""
    first = _tensors(args)[:1]
    return None if all(t.is_contiguous() for t in first) else _as_images(results, first)


def any_images(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """Like `images`, if any tensor is `channels_last`."""
    return _as_images(results, _tensors(args))


def volumes(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """Like `images`, also for a volume without a batch axis, which is read as one of a batch."""
    self = args[0]
    if is_row_major(self) or self.ndim == 5:
        return images(results, args, kwargs)
    if not axis_order.lies_as_images((1, *self.shape), (self.numel(), *self.stride())):
        return None
    return [None if r is None else axis_order.channels_last((1, *r.shape))[1:] for r in results]


def convolutions(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """Results are `channels_last` where PyTorch convolves in that format."""
    input, weight, *options = args
    if not kernel_choice.is_channels_last(input, weight, options):
        return None
    return [
        kernel_choice.strides_in_channels_last(r.shape) if r is not None and r.ndim > 2 else None
        for r in results
    ]


def _as_images(results: Results, tensors: Sequence[Tensor]) -> Strides:
    for tensor in tensors:
        if tensor.ndim not in _IMAGE_RANKS or is_row_major(tensor):
            continue
        if axis_order.lies_as_images(tensor.shape, tensor.stride()):
            like = [r is not None and r.ndim == tensor.ndim for r in results]
            rows = zip(results, like, strict=True)
            return [axis_order.channels_last(r.shape) if fits else None for r, fits in rows]
    return None


def columns(
    which: Iterable[int], results: Results, args: Sequence[Any], kwargs: dict[str, Any]
) -> Strides:
    """The last two axes of some results are column-major."""
    return [
        _column_major(r.shape) if i in which and r.ndim > 1 else None for i, r in enumerate(results)
    ]


def _column_major(shape: Ints) -> Ints:
    *batch, rows, width = shape
    *outer, last, first = contiguous_strides((*batch, width, rows))
    return (*outer, first, last)


def positions(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """The result of `nonzero` is column-major."""
    return [(1, r.shape[0]) for r in results if r is not None]


def sequences(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """A recurrent layer's outputs have time as the outermost axis in memory, even if the batch is
    first.
    """
    out, *others = results
    if out is None or args[-1] is not True:
        return None
    batch, _, width = out.shape
    return [(width, batch * width, 1), *[None] * len(others)]


def attention_of_the_cpu(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """The output follows the queries; the log-sum-exp and gradients have the heads innermost."""
    if len(results) == 2:
        out, logsumexp = results
        return [of_attention(out, args[0]), _heads_inside(logsumexp.shape)]
    return [_heads_inside(r.shape) for r in results]


def attention(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """The output follows the queries if PyTorch's fused kernel makes it."""
    query = args[0]
    if query.is_contiguous() or not kernel_choice.is_fused(args, kwargs):
        return None
    return [of_attention(results[0], query)]


def _heads_inside(shape: Ints) -> Ints:
    batch, heads, queries, *rest = shape
    outer, row, head, *inner = contiguous_strides((batch, queries, heads, *rest))
    return (outer, head, row, *inner)


def slices(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """Slices that an operator selects along an axis lie one after the other."""
    dims = [d for d in (*args[1:], *kwargs.values()) if type(d) is int]
    found = results[0]
    if found is None or not dims or found.ndim < 2:
        return None
    rest = list(range(found.ndim))
    order = [rest.pop(dims[0]), *rest]
    steps = contiguous_strides([found.shape[d] for d in order])
    stride = tuple(steps[order.index(d)] for d in range(found.ndim))
    return [stride, *repeat(None, len(results) - 1)]


def of_attention(result: Array, query: Tensor) -> Ints:
    """Attention's result has the axis order of the queries."""
    if query.is_contiguous():
        return contiguous_strides(result.shape)
    like = axis_order.of_elementwise(((query.shape, query.stride()),))
    return _transformed(result.shape, like, [])


def transforms(results: Results, args: Sequence[Any], kwargs: dict[str, Any]) -> Strides:
    """For Fourier transforms: transformed axes are innermost,
    the others in the argument's order.
    """
    (result,), self, given = results, args[0], args[1]
    if result is None or not result.size or not given:
        return None
    dims = [d % self.ndim for d in given]
    stride: Ints = self.stride()
    if not self.is_complex():  # the halved axis is last
        dims = [*_sorted(dims[:-1], stride), dims[-1]]
    elif not isinstance(args[3], bool):  # to real numbers: the last axis is transformed separately
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
    """Results have the strides of PyTorch's Meta kernel of the operator."""
    return _ask(name, tuple(map(_key, args)), tuple((n, _key(v)) for n, v in kwargs.items()))


def followed(name: str, results: Results, args: Sequence[Any], kwargs: Any) -> Strides:
    """Like `asked`, but row-major if the arguments are row-major."""
    if _row_major(_tensors((*args, *kwargs.values()))):
        return None
    return asked(name, results, args, kwargs)


def _key(value: object) -> Any:
    if isinstance(value, Tensor):
        return _Place(value.shape, value.stride(), value.dtype)
    return tuple(map(_key, value)) if isinstance(value, list | tuple) else value


def _unkey(key: object) -> Any:
    if isinstance(key, _Place):
        return _empty(key)
    return list(map(_unkey, key)) if isinstance(key, tuple) else key


@lru_cache(maxsize=4096)
def _ask(name: str, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Strides:
    named = {n: _unkey(v) for n, v in kwargs}
    try:
        found = _overload(name).redispatch(META, *map(_unkey, args), **named)
    except RuntimeError:  # the Meta kernel needs values, or does not exist
        return None
    parts = found if isinstance(found, list | tuple) else (found,)
    return [part.stride() if isinstance(part, Tensor) else None for part in parts]


def _overload(name: str) -> OpOverload:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(_aten, packet), overload or "default")


# Layouts by name ----------------------------------------------------------------------------------

_LAYERS: dict[str, Layer | None] = {
    "row_major": None,
    "copied": copies,
    "reals": reals,
    "each": each,
    "images": images,
    "large_images": large_images,
    "any_images": any_images,
    "volumes": volumes,
    "convolution": convolutions,
    "transform": transforms,
    "sequence": sequences,
    "positions": positions,
    "slices": slices,
    "attention": attention,
    "attention_of_the_cpu": attention_of_the_cpu,
}
_BY_NAME = {"meta": asked, "meta_if_strided": followed}
_ALWAYS = frozenset(
    ("meta", "transform", "sequence", "positions", "slices", "attention", "attention_of_the_cpu")
)
"""Layouts for which results may not be row-major even if the arguments are."""


def layer_of(name: str) -> Layer | None:
    """Returns the layout of an operator's results (with its namespace); None if row-major."""
    layer = _layer_of(name)
    laid_by = fact_of(name).get("laid_by")
    return layer if layer is None or laid_by is None else partial(_asking, layer, laid_by)


def _asking(
    layer: Layer,
    places: tuple[int, ...],
    results: Results,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Strides:
    """Like `layer`, of the arguments at some places."""
    return layer(results, [args[place] for place in places], {})


def _layer_of(name: str) -> Layer | None:
    known = fact_of(name)
    layout = known.get("layout")
    if "columns" in known:
        return partial(columns, known["columns"])
    if layout in _BY_NAME:
        return partial(_BY_NAME[layout], name)
    if layout is not None and layout != "elementwise":
        return _LAYERS[layout]
    if not name.startswith("aten::"):
        return None if layout is None else elementwise
    op = _overload(name)
    if layout is None and torch.Tag.pointwise not in op.tags:
        return None
    operands = _operands(op)
    return partial(elementwise, operands=operands) if operands else elementwise


def _operands(op: OpOverload) -> frozenset[int]:
    """Returns the positions of arguments that an operator takes as tensors, even if they are
    numbers.

    (`pow` takes its exponent as a number.)
    """
    names = [a.name for a in op._schema.arguments]
    if "self" not in names or "other" not in names:
        return _NONE
    return frozenset((names.index("self"), names.index("other")))


def always(name: str) -> bool:
    """Returns True if an operator's results may not be row-major even if its arguments are."""
    known = fact_of(name)
    return "columns" in known or known.get("layout") in _ALWAYS
