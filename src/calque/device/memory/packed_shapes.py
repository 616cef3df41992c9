"""Encodes the shapes and dtypes of tensors as an array of fixed size, which a program can
return.
"""

import jax
import numpy as np
import torch

from calque.device.runtime.dtypes import TO_NUMPY
from calque.upstream.torch_internals import tree_leaves

_SIZE = 64
_DTYPES = list(TO_NUMPY)
DESCRIPTION = jax.ShapeDtypeStruct((_SIZE,), np.dtype(np.int64))


def shapes_of(results: object) -> np.ndarray:
    """Returns the encoding of the tensors in a result: for each, its dtype, number of axes and
    their lengths.

    Raises:
        ValueError: there are too many tensors and axes.
    """
    words: list[int] = []
    for tensor in tree_leaves(results):
        if isinstance(tensor, torch.Tensor):
            words += [1 + _DTYPES.index(tensor.dtype), tensor.ndim, *tensor.shape]
    if len(words) > _SIZE:
        raise ValueError(f"there are too many tensors and axes to describe: {len(words)}")
    return np.array(words + [0] * (_SIZE - len(words)), np.int64)


def tensors_of(description: np.ndarray) -> list[torch.Tensor]:
    """Returns tensors without values, of the encoded shapes and dtypes."""
    words = iter(description.tolist())
    tensors = []
    while dtype := next(words, 0):
        shape = [next(words) for _ in range(next(words))]
        tensors.append(torch.empty(shape, dtype=_DTYPES[dtype - 1], device="meta"))
    return tensors


def fitted(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the elements in a different shape, for results that will be discarded."""
    if values.shape == shape:
        return values
    if values.ndim != len(shape):
        return np.zeros(shape, values.dtype)
    found = np.zeros(shape, values.dtype)
    common = tuple(slice(min(pair)) for pair in zip(values.shape, shape))
    found[common] = values[common]
    return found
