"""A module and a loss as one module that also returns the forward pass's side effects."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from calque.device.memory.cell import read
from calque.federated.learning.cumulative_statistics import count_in_tensors

PREFIX = "module."
"""The prefix of the names of the module's parameters and buffers."""


class ModuleWithLoss(torch.nn.Module):
    """Computes the losses of examples and, in training, the tensors that `forward` writes to.

    Parameters that require no gradient have none here either, and the user's hooks on the others
    (`register_hook`) get their gradients.

    Args:
        module: the module, which is copied.
        loss: a function of the module's output and of `y`.
        training: whether the copy is in training mode. If not, the output is returned too.

    Raises:
        TypeError: a parameter has a hook that runs after its gradient is accumulated.
    """

    surrounds_the_users_module = True

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Callable[[Any, Any], torch.Tensor],
        training: bool = True,
    ) -> None:
        super().__init__()
        self.module: torch.nn.Module = copy.deepcopy(module).train(training)
        count_in_tensors(self.module)
        self._trains = training
        self._loss = (loss,)  # in a tuple, so that it is not a submodule
        self._frozen = {n for n, p in module.named_parameters() if not p.requires_grad}
        self._hooks = {name: _hooks(name, p) for name, p in module.named_parameters()}

    def forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], y: Any) -> Any:
        """Returns the losses, and the new values of written parameters and buffers, by name.

        In evaluation, returns the losses and the output.
        """
        if not self._trains:
            output = self.module(*args, **kwargs)
            return self._loss[0](output, y), output
        own = dict(self.module.named_parameters())
        for name, parameter in own.items():
            parameter.requires_grad_(name not in self._frozen)
            for hook in self._hooks[name]:
                parameter.register_hook(hook)
        before = _values(own), _values(dict(self.module.named_buffers()))
        losses = self._loss[0](self.module(*args, **kwargs), y)
        after = dict(self.module.named_parameters()), dict(self.module.named_buffers())
        return losses, *map(_written, after, before)


def _values(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {name: read(tensor) for name, tensor in tensors.items()}


def _written(after: Mapping[str, torch.Tensor], before: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors whose values have changed."""
    return {n: t.detach() for n, t in after.items() if read(t) is not before.get(n)}


def inside(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns parameters or buffers by their names in `ModuleWithLoss`."""
    return {f"{PREFIX}{name}": array for name, array in arrays.items()}


def _hooks(name: str, parameter: torch.nn.Parameter) -> list[Callable[..., Any]]:
    """Returns the hooks of a parameter, which its copies lack."""
    if parameter._post_accumulate_grad_hooks:
        raise TypeError(
            f"the parameter {name!r} has a hook that runs after its gradient is accumulated, but "
            "clients do not accumulate gradients.\nUse register_hook, or an optimizer that does "
            "the same."
        )
    return list((parameter._backward_hooks or {}).values())
