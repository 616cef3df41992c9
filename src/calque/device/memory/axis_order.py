"""The order of axes in the memory of a new tensor, which PyTorch derives from the arguments.

PyTorch implements this rule twice, in `TensorIterator` for elementwise operators and in
`infer_dense_strides` for copies with `torch.preserve_format`. Its Meta kernels differ for axes of
length 1, whose strides programs can see, and which decide whether an image is `channels_last`.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from calque.device.memory.geometry import Ints, contiguous_strides, is_dense

Place = tuple[Ints, Ints]
"""The sizes and strides of a tensor."""


@lru_cache(maxsize=4096)
def of_copy(shape: Ints, stride: Ints) -> Ints:
    """Returns the strides of a copy: those of the original or, if these have holes or overlap,
    dense ones in the same order.

    >>> of_copy((1, 3, 4), (3, 1, 3)), of_copy((2, 3), (1, 4))
    ((3, 1, 3), (1, 2))
    """
    return stride if is_dense(shape, stride) else _in_order(shape, [stride])


@lru_cache(maxsize=4096)
def of_elementwise(places: tuple[Place, ...]) -> Ints:
    """Returns the strides of an elementwise operator's result; if tensors differ in the order of
    two axes, the first decides.

    >>> of_elementwise((((2, 3), (1, 2)), ((3,), (1,))))
    (1, 2)
    """
    shapes = [shape for shape, _ in places]
    shape = tuple(torch.broadcast_shapes(*shapes))
    if all(other == shape for other in shapes):
        same = _where_alike(shape, [stride for _, stride in places])
        if same is not None:
            return same
    return _in_order(shape, [_broadcast(place, shape) for place in places])


def channels_last(shape: Ints) -> Ints:
    """Returns the strides of images in `channels_last`."""
    batch, channels, *space = shape
    outer, *inner, last = contiguous_strides((batch, *space, channels))
    return (outer, last, *inner)


def lies_as_images(shape: Ints, stride: Ints) -> bool:
    """Returns True if PyTorch treats strides as `channels_last`, which includes parts of such
    images.
    """
    least = 0
    if stride[1] == 0:
        return False
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        step, length = stride[axis], shape[axis]
        if length == 0 or step < least or (axis == 0 and least == stride[1]):
            return False
        least = step * max(length, 1)
    return True


def _where_alike(shape: Ints, strides: Sequence[Ints]) -> Ints | None:
    """Returns the strides if no axes need to be sorted, otherwise None."""
    formats: list[Callable[[Ints], Ints]] = [contiguous_strides]
    if len(shape) in (4, 5):
        formats.append(channels_last)
    for form in formats:
        wanted = form(shape)
        if all(_agree(shape, stride, wanted) for stride in strides):
            return wanted
    first = strides[0]
    alike = all(stride == first for stride in strides)
    return first if alike and is_dense(shape, first) else None


def _agree(shape: Ints, stride: Ints, wanted: Ints) -> bool:
    """Returns True if strides differ only at axes of length 1, or there are no elements."""
    rows = zip(shape, stride, wanted, strict=True)
    return 0 in shape or all(n == 1 or step == other for n, step, other in rows)


def _broadcast(place: Place, shape: Ints) -> Ints:
    """Returns the strides of a tensor broadcast to a shape: 0 along repeated axes."""
    own, stride = place
    missing = len(shape) - len(own)
    rows = zip(own, stride, shape[missing:], strict=True)
    return (*[0] * missing, *[0 if n == 1 != size else step for n, step, size in rows])


def _in_order(shape: Ints, strides: Sequence[Ints]) -> Ints:
    """Returns dense strides in the order of the tensors' strides.

    This is an insertion sort like PyTorch's: a stride of 0 is not comparable to others, so other
    axes may end up in a different order than their strides.
    """
    order = list(range(len(shape)))[::-1]  # innermost first
    for last in range(1, len(order)):
        moving = last
        for i in reversed(range(last)):
            found = _compared(order[i], order[moving], shape, strides)
            if found < 0:
                break
            if found > 0:
                order[i], order[moving] = order[moving], order[i]
                moving = i
    result, step = [0] * len(shape), 1
    for axis in order:
        result[axis] = step
        step *= max(shape[axis], 1)
    return tuple(result)


def _compared(inner: int, outer: int, shape: Ints, strides: Sequence[Ints]) -> int:
    """Returns 1 if two axes must be swapped, -1 if not, 0 if no tensor decides."""
    for stride in strides:
        if 0 in (stride[inner], stride[outer]):
            continue
        if stride[inner] != stride[outer]:
            return 1 if stride[inner] > stride[outer] else -1
        if shape[inner] > shape[outer]:
            return 1
    return 0
