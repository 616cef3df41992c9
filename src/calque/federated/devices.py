"""Where the tensors of client work are: on "jax", as its arguments are."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import torch
from torch.overrides import TorchFunctionMode

from calque.device.memory.cell import read
from calque.errors import TraceError
from calque.federated.indexing import Elements, written_constant

_WORDING = (
    ("inside calque.jit,", "in a local function,"),
    (
        ", return it, or let calque.jit(fn, specialize=True) compile a program for each value",
        " or return it",
    ),
    ("; or calque.jit(fn, specialize=True), a program for each number of elements", ""),
)
"""What errors say of `calque.jit`, and what they say here: nothing is compiled for each value."""


@contextlib.contextmanager
def on_jax() -> Iterator[None]:
    """New tensors are on "jax", and those on the CPU are constants where they meet others."""
    try:
        with _MovedConstants(), torch.device("jax"):
            yield
    except TraceError as error:
        text = str(error)
        for of_jit, here in _WORDING:
            text = text.replace(of_jit, here)
        error.args = (text,)
        raise


def moved(value: Any) -> Any:
    """A pytree with the tensors on the CPU as constants on "jax"."""
    return jax.tree.map(lambda leaf: _constant(leaf) if _on(leaf, "cpu") else leaf, value)


class _MovedConstants(TorchFunctionMode):
    """Calls that mix tensors on "jax" and on the CPU get copies of the latter.

    Writing to such a copy would be lost, and is an error. An index may be a tensor: see `indexing`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._elements = Elements()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = (args, kwargs or {})
        leaves = jax.tree.leaves(given)
        if not (any(_on(x, "cpu") for x in leaves) and any(_on(x, "jax") for x in leaves)):
            return self._called(func, *given)
        copies: list[torch.Tensor] = []

        def copied(leaf: Any) -> Any:
            if not _on(leaf, "cpu"):
                return leaf
            copies.append(_constant(leaf))
            return copies[-1]

        args, kwargs = jax.tree.map(copied, given)
        before = [read(copy) for copy in copies]
        result = self._called(func, args, kwargs)
        if any(read(copy) is not array for copy, array in zip(copies, before, strict=True)):
            raise written_constant()
        self._elements.hold_constant(copies)
        return result

    def _called(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = (self._elements.indexing(func, args) or func)(*args, **kwargs)
        self._elements.settle()
        if func == torch.Tensor.requires_grad_ and not result.is_leaf:
            result.retain_grad()  # an argument's clone is no leaf, as its gradient may be asked for
        return result


def _on(value: Any, device: str) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == device


def _constant(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("jax")
