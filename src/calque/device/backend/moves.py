"""`Module.to("jax")` moves parameters in place, as `Module.cuda()` does.

PyTorch creates new parameters if the old ones cannot take the new tensor's data, which is always so
for an out-of-tree device: tied weights would be untied, and an optimizer created before the move
would keep the old parameters. Here, a parameter that enters or leaves the device keeps its
identity, attributes and hooks; only its implementation changes. All other moves are PyTorch's. A
TorchScript module refers to the implementations of its parameters, and is updated.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.jit import ScriptModule
from torch.nn import Module, Parameter
from torch.nn.parameter import is_lazy

from calque.device.memory.cell import cell_of, current
from calque.device.runtime.pending_placements import pending, take_pending
from calque.device.runtime.placement import placed
from calque.upstream import torch_c, torch_internals

Function = Callable[[torch.Tensor], torch.Tensor]
_PLAIN = (torch.Tensor, Parameter)


def crosses(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Returns True if a conversion takes a tensor onto the device or away from it."""
    types = (before.device.type, after.device.type)
    return types[0] != types[1] and "jax" in types


class Move:
    """Converts a whole module: each parameter once, in place if it enters or leaves the device."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._done: dict[int, torch.Tensor] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in self._done:
            return tensor
        if is_lazy(tensor):
            return self._lazy(tensor)
        result = self._function(tensor)
        if pending(tensor) is not None and result.device.type == "jax":
            cell = cell_of(result)
            cell.array = placed(current(cell), take_pending(tensor))
        plain = type(result) in _PLAIN and isinstance(tensor, Parameter)
        if not (plain and crosses(tensor, result)):
            return result
        grad = tensor.grad
        tensor.grad = None
        become(tensor, Parameter(result, requires_grad=tensor.requires_grad))
        self._done[id(tensor)] = tensor
        if grad is not None:
            become(grad, self._function(grad).requires_grad_(grad.requires_grad))
            self._done[id(grad)] = grad
            tensor.grad = grad
        return tensor

    def _lazy(self, tensor: Any) -> torch.Tensor:
        """Returns an uninitialized parameter or buffer with a new device and dtype."""
        before = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        after = self._function(before)
        if not crosses(before, after) and after.device.type != "jax":
            return self._function(tensor)
        form = {"requires_grad": tensor.requires_grad, "device": after.device, "dtype": after.dtype}
        torch_c.swap_tensor_impl(tensor, tensor.__class__(**form))
        self._done[id(tensor)] = tensor
        return tensor


def become(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Replace the implementation of a leaf tensor with another's, keeping its attributes and hooks.

    An autograd graph recorded before refers to the old implementation, whose gradient would be
    lost: running it backward raises RuntimeError.
    """
    if tensor.requires_grad:
        torch.autograd.graph.get_gradient_edge(tensor).node.register_prehook(_moved)
    hooks = {name: getattr(tensor, name) for name in _HOOKS}
    torch_c.swap_tensor_impl(tensor, other)
    for name, value in hooks.items():
        if value:
            setattr(tensor, name, None)
            setattr(tensor, name, value)


_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def _moved(gradients: object) -> None:
    raise RuntimeError(
        "a parameter was moved to or from the jax device between the forward and the backward "
        "pass, so its gradient would be lost. Move the module before the forward pass, or after "
        "the backward pass"
    )


def _scripted_parameters(root: Module) -> list[tuple[Module, str, Parameter]]:
    """Returns the parameters of TorchScript modules, with the attributes that hold them."""
    return [
        (module, name, parameter)
        for module in root.modules()
        if isinstance(module, ScriptModule)
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
    ]


def install() -> None:
    """Make modules move their parameters in this way."""
    theirs = torch_internals.Module._apply

    @functools.wraps(theirs)
    def _apply(self: Module, fn: Function, recurse: bool = True) -> Module:
        if isinstance(fn, Move):
            return theirs(self, fn, recurse)
        scripted = _scripted_parameters(self)
        result = theirs(self, Move(fn), recurse)
        for module, name, parameter in scripted:
            setattr(module, name, parameter)
        return result

    torch_internals.Module._apply = _apply  # type: ignore[method-assign]
