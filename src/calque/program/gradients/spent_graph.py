"""Freed graphs: a backward pass of a result whose graph was freed in the call raises an error.

PyTorch's `DelayedError` creates a node for each tensor, and for each node PyTorch calls the
device's guard, which is Python, twice: several microseconds in calls that take forty. So all
tensors from the same position of a program share a node. PyTorch creates a node's result tensor
when it unpacks the saved result; with an unpack hook, from the hook's result.
"""

from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from calque.device.backend.printing import FREED
from calque.device.runtime import threads
from calque.upstream import torch_c
from calque.upstream.torch_internals import TorchDispatchMode

Tensor = torch.Tensor
_empty = torch_c.acc.create_empty_tensor
_LAST = -1


class SpentGraph:
    """Gives tensors of one shape and dtype a graph whose backward raises an error.

    Args:
        message: the message of the error.
        shape, dtype: those of the tensors.

    Attributes:
        push: stores a tensor.
        take: called with `node`, returns a tensor that shares the memory of the last stored tensor
            and has the graph.
        pop: removes the last stored tensor. Between these calls, other threads may run only
            complete sequences of the three.
    """

    def __init__(self, message: str, shape: Any, dtype: torch.dtype) -> None:
        self._error = torch_c.functions.DelayedError(message, 1)
        self._form = tuple(shape), dtype
        noted: list[Tensor] = []
        self.push: Any = noted.append
        self.pop: Any = noted.pop
        self._unpack = noted.__getitem__
        self._message = message
        self.node: Any = None
        self.take: Any = None

    def make(self) -> bool:
        """Create the node if necessary; returns False if this is currently impossible."""
        if self.node is not None:
            return True
        if not torch_c.autograd._saved_tensors_hooks_is_enabled():
            return False
        with (
            torch_c.DisableTorchFunction(),
            torch.inference_mode(False),
            torch.enable_grad(),
            saved_tensors_hooks(lambda tensor: _LAST, self._unpack),
            _Computing(),
        ):
            node: Any = _empty(*self._form).requires_grad_().exp().grad_fn
        node.metadata[FREED] = True
        node.register_prehook(self._refuse)
        self.take = type(node)._saved_result.__get__
        self.node = node
        return True

    def _refuse(self, gradients: object) -> None:
        raise RuntimeError(self._message)

    def __call__(self, tensor: Tensor) -> Tensor:
        """Returns a tensor that shares the memory of another, with the graph."""
        if torch.is_inference_mode_enabled() or not self.make():
            return self._error(tensor.requires_grad_())
        with threads.turn:
            self.push(tensor)
            try:
                return self.take(self.node)
            finally:
                self.pop()


class _Computing(TorchDispatchMode):
    """A mode that computes nothing, because the node's saved values are not used."""

    def __torch_dispatch__(
        self, func: object, types: object, args: Any = (), kwargs: object = None
    ) -> Any:
        return _empty(tuple(args[0].shape), args[0].dtype)
