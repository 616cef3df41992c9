"""The signature of a call: what of its arguments a program is compiled for."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch.nn import Parameter
from torch.utils import _pytree

_VALUES = frozenset((bool, int, float, complex, str, bytes, torch.dtype, torch.device))


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a pytree and what puts them back; knows JAX's and PyTorch's containers."""
    leaves, spec = jax.tree_util.tree_flatten(tree)
    for leaf in leaves:
        if type(leaf) in _pytree.SUPPORTED_NODES:
            return _pytree.tree_flatten(tree)
    return leaves, spec


def unflatten(leaves: list[Any], spec: Any) -> Any:
    """The inverse of `flatten`."""
    if isinstance(spec, _pytree.TreeSpec):
        return _pytree.tree_unflatten(leaves, spec)
    return jax.tree_util.tree_unflatten(spec, leaves)


def key_of(leaf: Any) -> Any:
    """What a program is compiled for, of one leaf: shape and dtype, a value, or an identity."""
    kind = type(leaf)
    if kind is torch.Tensor or kind is Parameter or isinstance(leaf, torch.Tensor):
        return (leaf.shape, leaf.dtype, leaf.device.type, leaf.requires_grad)
    if kind in _VALUES:
        return (kind, leaf)
    if isinstance(leaf, np.ndarray):
        return (kind, leaf.shape, leaf.dtype.str, leaf.tobytes())
    return (kind, id(leaf))


def same_tree(spec: Any) -> Callable[[list[Any]], Any]:
    """A function that puts leaves back into one tree; fast for a single leaf and flat tuples."""
    if isinstance(spec, jax.tree_util.PyTreeDef):
        if spec == jax.tree_util.tree_structure(0):
            return lambda leaves: leaves[0]
        return spec.unflatten
    return lambda leaves: unflatten(leaves, spec)
