"""Creates results that are views, with or without a view relation in autograd."""

from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from calque.device.memory.cell import cell_of
from calque.device.memory.geometry import View
from calque.device.memory.wrapping import META
from calque.upstream import torch_c

_autograd = torch_c.autograd

Creation = Any
"""PyTorch's `CreationMeta` of a view, which says whether an in-place write with a gradient raises.
"""

PLAIN: Creation = _autograd.CreationMeta.DEFAULT
"""The creation of a view that may be written in place."""


def creation_of(tensor: torch.Tensor) -> Creation | None:
    """Returns how a tensor was created, if it is a view that `seen_as` can create, otherwise
    None.
    """
    base = tensor._base if tensor._is_view() else None
    if base is None or base.is_nested or cell_of(base) is not cell_of(tensor):
        return None
    if not _fits(base, tensor.dtype):
        return None
    return _autograd._get_creation_meta(tensor)


def _fits(base: torch.Tensor, dtype: torch.dtype) -> bool:
    """Returns True if a tensor can be viewed as a dtype, including its gradients."""
    if base.is_complex() == dtype.is_complex:
        return base.dtype == dtype
    return base.dtype.to_real() == dtype.to_real()


def viewed(base: torch.Tensor, dtype: torch.dtype, view: View, creation: Creation) -> torch.Tensor:
    """Returns a view of a tensor without gradient flow, which autograd still knows as its view.

    As with any view, a later write with a gradient to one of them reaches the other, or raises.
    """
    with torch.no_grad():
        made = seen_as(base, dtype, view)
    set_creation(made, creation)
    return made


def has_edge(tensor: torch.Tensor) -> bool:
    """Returns True if gradients reach a tensor that requires them.

    They do not reach a view that requires gradients only because its base was changed to require
    them later, or a view created under `no_grad`.
    """
    if not tensor._is_view():
        return True
    with torch.enable_grad():
        node = tensor.view_as(tensor).grad_fn
    return node is not None and node.next_functions[0][0] is not None


def source_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the tensor to which a view's gradient flows: its base, or a leaf that is a view of
    the base.

    Returns None if it is not a view that `seen_as` can create, or if its gradient flows elsewhere.
    """
    base = tensor._base
    if base is None or creation_of(tensor) is None:
        return None
    return base if base.requires_grad else _leaf_over(base, tensor)


def _leaf_over(base: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the leaf of a view's graph, if the leaf itself is a view of a base without
    gradients.
    """
    nodes, seen = [tensor.grad_fn], set[Any]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf is not tensor and leaf._base is base:
            return leaf
        nodes += [following for following, _ in node.next_functions]
    return None


def is_plain_view(tensor: torch.Tensor) -> bool:
    """Returns True if a non-leaf tensor is a view whose gradient flows directly to its source.

    Only PyTorch's operators may be in between, because a user's function has its own backward.
    Hooks in between are not detected.
    """
    source, node = source_of(tensor), tensor.grad_fn
    if source is None:
        return False
    edge = get_gradient_edge(source)
    while node is not None and not isinstance(node, torch.autograd.function.BackwardCFunction):
        following = node.next_functions
        if following == ((edge.node, edge.output_nr),):
            return True
        if len(following) != 1:
            return False
        node = following[0][0]
    return False


def set_creation(view: torch.Tensor, creation: Creation) -> None:
    """Change autograd's record of how a view was created."""
    if view._is_view():  # tensors of inference mode are not views
        _autograd._set_creation_meta(view, creation)


def apart(base: torch.Tensor, dtype: torch.dtype, view: View) -> torch.Tensor:
    """Returns a tensor over another one's storage that is not its view for autograd.

    As after `detach`, they share a version counter.
    """
    if _fits(base, dtype):
        return seen_as(base.detach(), dtype, view).detach()
    cell_of(base).viewed = True
    tensor = torch.empty(0, dtype=dtype, device="jax")
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        META, tensor, base.untyped_storage(), view.offset, view.size, view.stride
    )
    return tensor


def seen_as(base: torch.Tensor, dtype: torch.dtype, view: View) -> torch.Tensor:
    """Returns a view of a tensor through which gradients flow."""
    if base.is_complex() and not dtype.is_complex:
        return torch.view_as_real(base).as_strided(*view)
    if dtype.is_complex and not base.is_complex():
        steps = [2 * step for step in view.stride]
        pairs = base.as_strided((*view.size, 2), (*steps, 1), 2 * view.offset)
        return torch.view_as_complex(pairs)
    return base.as_strided(*view)
