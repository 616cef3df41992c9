"""Rules for products, convolutions and windows."""

from typing import Any

import numpy as np

from calque.dynamo.buckets.padding.padded import (
    SAME,
    Padded,
    Sizes,
    Unpaddable,
    aligned,
    filled,
    layout_of,
    spread,
)
from calque.dynamo.buckets.padding.table import expected, rule


@rule("dot_general")
def _dot_general(sizes: Sizes, equation: Any, left: Padded, right: Padded) -> Padded:
    (contracted, batch) = equation.params["dimension_numbers"]
    shared = [(*batch[side], *contracted[side]) for side in (0, 1)]
    left, right = aligned(sizes, (left, right), shared)
    for axis, other in zip(contracted[0], contracted[1], strict=True):
        layout = layout_of(equation.invars[0].aval.shape[axis])
        if left.layout[axis] == SAME:
            left, right = (spread(sizes, v, a, layout) for v, a in ((left, axis), (right, other)))
    left, right = (
        filled(sizes, v, c, 0) for v, c in ((left, contracted[0]), (right, contracted[1]))
    )
    layout = [left.layout[axis] for axis in batch[0]]
    for side, value in enumerate((left, right)):
        layout += [axis for i, axis in enumerate(value.layout) if i not in shared[side]]
    array = equation.primitive.bind(left.array, right.array, **equation.params)
    return Padded(array, tuple(layout))


@rule("conv_general_dilated")
def _convolution(sizes: Sizes, equation: Any, image: Padded, kernel: Padded) -> Padded:
    """Pads with zeros, as a convolution does at the edges of an image."""
    (batch, features, *space), (out, inner, *window), place = equation.params["dimension_numbers"]
    shapes = [v.aval.shape for v in equation.invars]
    if any(kernel.layout[axis] is not None for axis in window):
        raise Unpaddable("the window itself is padded")
    if not all(
        isinstance(n, int | np.integer) for pair in equation.params["padding"] for n in pair
    ):
        raise Unpaddable("the padding at the edges depends on a padded size")
    for axis in (features, *space):
        image = spread(sizes, image, axis, layout_of(shapes[0][axis]))
    kernel = spread(sizes, kernel, inner, layout_of(shapes[1][inner]))
    groups = [equation.params[name] for name in ("feature_group_count", "batch_group_count")]
    if groups != [1, 1]:
        grouped = (image.layout[features], kernel.layout[inner], kernel.layout[out])
        if groups[1] != 1:
            grouped = (*grouped, image.layout[batch])
        if any(layout is not None for layout in grouped):
            raise Unpaddable("it splits a padded axis into groups")
    if image.layout[features] != kernel.layout[inner]:
        raise Unpaddable("its operands are padded in different ways")
    if any(len(image.layout[axis] or ()) > 1 for axis in space):
        raise Unpaddable("a window slides along an axis that is padded in several places")
    image = filled(sizes, image, (features, *space), 0)
    kernel = filled(sizes, kernel, (inner,), 0)
    array = equation.primitive.bind(image.array, kernel.array, **equation.params)
    layout = list(map(layout_of, equation.outvars[0].aval.shape))
    layout[place[0]], layout[place[1]] = image.layout[batch], kernel.layout[out]
    return expected(sizes, equation, Padded(array, tuple(layout)))


@rule(
    *["reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"],
    *["select_and_scatter_add", "select_and_gather_add"],
)
def _window(sizes: Sizes, equation: Any, *values: Padded) -> Any:
    """Handles windows that have one element along padded axes."""
    params = equation.params
    rank = values[0].array.ndim
    of_rank = [v for v in values if v.array.ndim == rank]
    found = iter(aligned(sizes, of_rank, [_dynamic(values[0])] * len(of_rank)))
    given = [next(found) if v.array.ndim == rank else v for v in values]
    for axis in _dynamic(given[0]):
        steps = (params[name][axis] for name in _STEPS if name in params)
        if any(step != 1 for step in steps) or any(params["padding"][axis]):
            raise Unpaddable("a window slides along a padded axis")
    out = equation.primitive.bind(*(v.array for v in given), **params)
    if equation.primitive.multiple_results:
        return [Padded(array, given[0].layout) for array in out]
    return Padded(out, given[0].layout)


_STEPS = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")


def _dynamic(value: Padded) -> list[int]:
    return [axis for axis, layout in enumerate(value.layout) if layout is not None]
