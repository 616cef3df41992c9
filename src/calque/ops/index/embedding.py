"""Rows of a table by index, and bags of them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.index.index_bounds import positions, take
from calque.ops.table.helpers import maximum
from calque.ops.table.linear_resample import widened
from calque.ops.table.promotion import type_name
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import TensorArgument

SUM, MEAN, MAX = 0, 1, 2


def rows(table: Array, indices: Array) -> Array:
    """Returns the rows of a table at indices, NaN for an index out of range."""
    return take(table, positions(indices, table.shape[0]))


def _check_indices(indices: Array) -> None:
    if indices.dtype not in (np.int32, np.int64):
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: "
            f"Long, Int; but got {indices.dtype} instead (while checking arguments for embedding)"
        )


def _within_table(weight: TensorArgument, indices: TensorArgument, **_: Any) -> None:
    if weight.ndim != 2 or indices.is_float:
        return
    if weight.shape[0] == 0 and indices.size:
        raise RuntimeError("embedding: the table has no rows to take")
    indices.require_within(0, weight.shape[0], lambda _: IndexError("index out of range in self"))


def _embedding_condition(weight: Any, indices: Any, *_: Any, **__: Any) -> None:
    if weight.ndim != 2:
        raise RuntimeError("'weight' must be 2-D")


@op("embedding", values=_within_table, condition=_embedding_condition)
def embedding(
    weight: Array,
    indices: Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:
    if weight.ndim != 2:
        raise RuntimeError("'weight' must be 2-D")
    _check_indices(indices)
    return rows(weight, indices)


@op("embedding_dense_backward")
def embedding_dense_backward(
    grad_output: Array,
    indices: Array,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Array:
    at = indices.reshape(-1)
    grad = widened(grad_output).reshape(at.shape[0], grad_output.shape[-1])
    if padding_idx >= 0:
        at = jnp.where(at == padding_idx, num_weights, at)
    if scale_grad_by_freq:
        grad = grad / _frequency(at, num_weights)[:, None].astype(grad.dtype)
    return add_rows(at, grad, num_weights).astype(grad_output.dtype)


def _frequency(at: Array, count: int) -> Array:
    """Returns how often each index occurs."""
    at = positions(at, count)
    zeros = jnp.zeros((count,), np.int32)
    times = zeros.at[at].add(1, mode="drop", wrap_negative_indices=False)
    return jnp.maximum(times.at[at].get(mode="fill", fill_value=1), 1)


def add_rows(at: Array, values: Array, count: int) -> Array:
    """Adds values into `count` rows of zeros; drops indices out of range."""
    zeros = jnp.zeros((count, *values.shape[1:]), values.dtype)
    return zeros.at[positions(at, count)].add(values, mode="drop", wrap_negative_indices=False)


@op("embedding_renorm")
def embedding_renorm(self: Array, indices: Array, max_norm: float, norm_type: float) -> Array:
    """Returns the table with the rows in use scaled down to a norm."""
    at = positions(indices.reshape(-1), self.shape[0])
    none = jnp.zeros((self.shape[0],), bool)
    used = none.at[at].set(True, mode="drop", wrap_negative_indices=False)
    wide = widened(self)
    if norm_type == np.inf:
        norms = maximum(jnp.abs(wide), (1,))
    else:
        norms = jnp.linalg.norm(wide, ord=norm_type, axis=1)
    scale = jnp.where(used & (norms > max_norm), max_norm / (norms + 1e-7), 1)
    return (self * scale.astype(self.dtype)[:, None]).astype(self.dtype)


def _bag_of(offsets: Array, length: int, bags: int) -> Array:
    """Returns the bag of each index: the number of offsets at or before it, minus one."""
    starts = jnp.zeros((length + 1,), np.int64).at[offsets[:bags]].add(1, mode="drop")
    return jnp.cumsum(starts)[:length] - 1


def _bags(
    weight: TensorArgument, indices: TensorArgument, offsets: TensorArgument, **_: Any
) -> None:
    found = indices.values()
    if found is not None and not ((found >= 0) & (found < weight.shape[0])).all():
        at = int(np.flatnonzero((found < 0) | (found >= weight.shape[0]))[0])
        raise RuntimeError(
            f"Index {at} of input takes value {found.flat[at]} which is not in the valid range "
            f"[0, {weight.shape[0]})"
        )
    starts = offsets.values()
    if starts is None or starts.ndim != 1 or not indices.shape:
        return
    if starts[0] != 0:
        raise RuntimeError(f"offsets[0] has to be 0. However, got {starts[0]}")
    if starts[-1] > indices.shape[0]:
        raise RuntimeError(
            f"offsets[-1] can not be greater than input's length {indices.shape[0]} but got "
            f"offsets[-1] of {starts[-1]}"
        )


def _bag_condition(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Any = None,
    *_: Any,
    **__: Any,
) -> None:
    _bag_ranks(weight, indices, offsets)
    if per_sample_weights is not None and per_sample_weights.dtype != weight.dtype:
        raise RuntimeError(
            "Expected tensor for argument #1 'weight' to have the same type as tensor for argument "
            f"#1 'per_sample_weights'; but type {type_name(weight.dtype)} does not equal "
            f"{type_name(per_sample_weights.dtype)} (while checking arguments for embedding_bag)"
        )


def _bag_ranks(weight: Any, indices: Any, offsets: Any) -> None:
    for name, x, ranks in (
        ("input", indices, (1, 2)),
        ("offsets", offsets, (1,)),
        ("weight", weight, (2,)),
    ):
        if x.ndim not in ranks:
            allowed = " or ".join(f"{rank}D" for rank in ranks)
            raise RuntimeError(
                f"{name} has to be a {allowed} Tensor, but got Tensor of dimension {x.ndim}"
            )
    if indices.ndim == 2:  # PyTorch's kernel reads the lengths of one axis, and then beyond it
        raise RuntimeError(
            "torch.embedding_bag takes 1D indices with offsets. Call "
            "torch.nn.functional.embedding_bag(input, weight), which takes bags of equal size as "
            "2D indices, without offsets"
        )


@op("_embedding_bag", "_embedding_bag_forward_only", values=_bags, condition=_bag_condition)
def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, Array, Array, Array]:
    """Returns the reduced bags, the bag of each index, the sizes of the bags, and the position of
    each maximum."""
    _check_indices(indices)
    bags = offsets.shape[0] - include_last_offset
    length, count = indices.shape[0], weight.shape[0]
    padding = padding_idx + count if padding_idx < -1 else padding_idx
    bag = _bag_of(offsets.astype(np.int64), length, bags)
    kept = jnp.ones((length,), bool) if padding < 0 else indices != padding
    into = jnp.where(kept, bag, bags)
    sizes = jnp.zeros((bags,), np.int64).at[into].add(1, mode="drop")
    taken = widened(rows(weight, indices))
    if mode == MAX:
        out, best = _bag_max(taken, indices, into, bags)
        lost = (indices < 0) | (indices >= count)
        out = jnp.where((sizes > 0)[:, None], out, 0)
        out = jnp.where(jnp.zeros((bags,), bool).at[into].max(lost)[:, None], np.nan, out)
        return out.astype(weight.dtype), bag, sizes, best
    if per_sample_weights is not None:
        taken = taken * widened(per_sample_weights)[:, None]
    out = jax.ops.segment_sum(taken, into, bags)
    if mode == MEAN:
        out = out / jnp.maximum(sizes, 1)[:, None].astype(out.dtype)
    return out.astype(weight.dtype), bag, sizes, jnp.zeros((bags,), np.int64)


def _bag_max(taken: Array, indices: Array, into: Array, bags: int) -> tuple[Array, Array]:
    """Returns the largest of each bag, and its index. As in C, comparisons with NaN are false: it
    is the largest if it comes first, and skipped otherwise.
    """
    length = taken.shape[0]
    if not length:
        shape = (bags, *taken.shape[1:])
        return jnp.zeros(shape, taken.dtype), jnp.full(shape, -1, np.int64)
    place = jnp.arange(length, dtype=np.int64)
    start = jax.ops.segment_min(place, into, bags)
    is_start = (place == start.at[into].get(mode="clip"))[:, None]
    heads = jnp.isnan(taken) & is_start
    known = jnp.where(jnp.isnan(taken), jnp.where(heads, np.inf, -np.inf), taken)
    out = jax.ops.segment_max(known, into, bags)
    is_best = known == out.at[into].get(mode="clip")
    first = jax.ops.segment_min(jnp.where(is_best, place[:, None], length), into, bags)
    is_headed = jax.ops.segment_max(heads.astype(np.int32), into, bags) > 0
    found = jnp.where(is_headed, np.nan, out)
    return found, indices.astype(np.int64).at[first].get(mode="fill", fill_value=-1)


@op("_embedding_bag_backward")
def embedding_bag_backward(
    grad: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    return embedding_bag_dense_backward(
        grad,
        indices,
        offset2bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@op("_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad: Array,
    indices: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    wide = widened(grad)
    if mode == MAX:
        column = np.arange(grad.shape[1])
        at = jnp.where(maximum_indices < 0, num_weights, maximum_indices)
        zeros = jnp.zeros((num_weights, grad.shape[1]), wide.dtype)
        return zeros.at[at, column].add(wide, mode="drop").astype(grad.dtype)
    if mode == MEAN:
        wide = wide / jnp.maximum(bag_size, 1)[:, None].astype(wide.dtype)
    each = wide.at[offset2bag].get(mode="fill", fill_value=0)
    if per_sample_weights is not None:
        each = each * widened(per_sample_weights)[:, None]
    at = indices if padding_idx < 0 else jnp.where(indices == padding_idx, num_weights, indices)
    if scale_grad_by_freq:
        each = each / _frequency(at, num_weights)[:, None].astype(each.dtype)
    return add_rows(at, each, num_weights).astype(grad.dtype)


@op("_embedding_bag_per_sample_weights_backward")
def embedding_bag_per_sample_weights_backward(
    grad: Array,
    weight: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    mode: int,
    padding_idx: int = -1,
) -> Array:
    each = widened(grad).at[offset2bag].get(mode="fill", fill_value=0)
    products = jnp.sum(each * widened(rows(weight, indices)), axis=1)
    if padding_idx >= 0:
        products = jnp.where(indices == padding_idx, 0, products)
    return products.astype(grad.dtype)
