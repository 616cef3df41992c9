"""Graphs that a backward has used up: what a call returns has one, and a backward says so.

PyTorch's `DelayedError` makes a node for each tensor. For each node PyTorch asks the device's guard
twice, which is a method in Python: several microseconds, in calls that take forty. So all tensors
of one place in a program share a node. PyTorch makes a tensor that is the result of a node when it
unpacks what the node has saved of its result; where a hook unpacks, of whatever that gives.
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
    """Gives tensors of one form a graph whose backward raises an error.

    Args:
        message: of the error.
        shape, dtype: of the tensors.

    Attributes:
        push: takes note of a tensor.
        take: gives of `node` a tensor over the memory of the one noted last, with the graph.
        pop: forgets the one noted last. Nothing else may happen in this thread or in others
            between these three, but for whole sequences of them.
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
        """Make the node; gives whether that can be, here and now."""
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

    def _refuse(self, gradients: Any) -> None:
        raise RuntimeError(self._message)

    def __call__(self, tensor: Tensor) -> Tensor:
        """A tensor over the memory of another, with the graph."""
        if torch.is_inference_mode_enabled() or not self.make():
            return self._error(tensor.requires_grad_())
        with threads.turn:
            self.push(tensor)
            try:
                return self.take(self.node)
            finally:
                self.pop()


class _Computing(TorchDispatchMode):
    """Computes nothing: nobody looks at what the node would save."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _empty(tuple(args[0].shape), args[0].dtype)
