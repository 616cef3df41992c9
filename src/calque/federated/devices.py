"""Places the tensors of client work on "jax", like its arguments."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import torch
from torch.overrides import TorchFunctionMode

from calque.device.memory.cell import active, read
from calque.errors import TraceError, at_user_line
from calque.federated.constants import ConstantChecks, written_constant
from calque.federated.indexing import Elements
from calque.federated.local_optimizers import optimizers_traced
from calque.tracing.core.compiled import as_written

_WORDING = (
    ("inside calque.jit,", "in a local function,"),
    ("inside calque.jit:", "in a local function:"),
    ("the buffer 'module.", "the buffer '"),
    ("a functional module", "a local function"),
    (
        "pass buffers=apply.buffers and use the new buffers that it returns, or call module.eval()",
        "call module.eval(), or train it by federated.learning",
    ),
    (
        (
            ", return it, or use calque.jit(fn, specialize=True), which compiles a program for "
            "each value"
        ),
        " or return it",
    ),
    ("; or calque.jit(fn, specialize=True), a program for each number of elements", ""),
)
"""Replacements for text about `calque.jit` in errors, because values are not compiled separately
here.
"""


@contextlib.contextmanager
def on_jax(trained: Mapping[str, torch.Tensor] | None = None) -> Iterator[None]:
    """A context manager in which new tensors are on "jax", and CPU tensors are constants.

    Args:
        trained: see `ConstantChecks`.
    """
    try:
        with (
            as_written(),
            optimizers_traced(),
            ConstantChecks(trained),
            _MovedConstants(),
            torch.device("jax"),
        ):
            yield
    except TraceError as error:
        text = str(error)
        for of_jit, here in _WORDING:
            text = text.replace(of_jit, here)
        error.args = (text,)
        raise


def moved(value: Any) -> Any:
    """Returns a pytree with the tensors on the CPU as constants on "jax"."""
    return jax.tree.map(lambda leaf: _constant(leaf) if _on(leaf, "cpu") else leaf, value)


_CLONES = (torch.Tensor.clone, torch.clone)
_TO_NUMPY = (torch.Tensor.numpy, torch.Tensor.__array__)
_GRADIENT: Any = torch.Tensor.grad
_READ_GRADIENT = _GRADIENT.__get__


class _MovedConstants(TorchFunctionMode):
    """Copies CPU tensors in calls that mix them with tensors on "jax".

    Writes to such a copy, and gradients that reach it, would be lost, so they are errors. Copies
    that the function itself makes may be mixed with its arguments. An index may be a tensor: see
    `indexing`. Autocast for the CPU also applies to "jax".
    """

    def __init__(self) -> None:
        super().__init__()
        self._elements = Elements()
        self._reached: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("jax"):
            with torch.autocast("jax", dtype=torch.get_autocast_dtype("cpu")):
                return self._handled(func, args, kwargs or {})
        return self._handled(func, args, kwargs or {})

    def _handled(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        given = (args, kwargs)
        if func in _CLONES and _on(args[0], "cpu"):
            return func(self._copy(args[0]), *args[1:], **given[1])
        if func == torch.Tensor.__deepcopy__ and _on(args[0], "cpu"):
            return _deepcopy(*args, **given[1])
        if func == _READ_GRADIENT and id(args[0]) in self._reached:
            raise _gradient_of_constant()
        if func in _TO_NUMPY and _on(args[0], "jax") and active.trace is not None:
            raise TraceError(
                at_user_line(
                    f"a tensor of shape {tuple(args[0].shape)} and dtype {args[0].dtype} is "
                    "converted to NumPy in a local function, where it has no value yet.\nCompute "
                    "with PyTorch's functions there, or return it."
                )
            )
        leaves = jax.tree.leaves(given)
        if not (any(_on(x, "cpu") for x in leaves) and any(_on(x, "jax") for x in leaves)):
            return self._called(func, *given)
        copies: list[torch.Tensor] = []

        def copied(leaf: Any) -> Any:
            if not _on(leaf, "cpu"):
                return leaf
            copies.append(self._copy(leaf))
            return copies[-1]

        if func == torch.autograd.grad and any(_on(x, "cpu") for x in _inputs(*args, **given[1])):
            raise _gradient_of_constant()
        args, kwargs = jax.tree.map(copied, given)
        before = [read(copy) for copy in copies]
        result = self._called(func, args, kwargs)
        if any(read(copy) is not array for copy, array in zip(copies, before, strict=True)):
            raise written_constant()
        self._elements.hold_constant(copies)
        return result

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a constant that records whether a gradient reaches it."""
        copy = _constant(tensor)
        if tensor.requires_grad and torch.is_grad_enabled():
            copy.requires_grad_()
            copy.register_hook(lambda _: self._reached.update({id(tensor): tensor}))
        return copy

    def _called(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = (self._elements.indexing(func, args) or func)(*args, **kwargs)
        self._elements.settle()
        if func == torch.Tensor.requires_grad_ and not result.is_leaf:
            result.retain_grad()  # an argument's clone is not a leaf, but its gradient may be read
        return result


def _deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    if id(tensor) not in memo:
        memo[id(tensor)] = _constant(tensor).requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


def _inputs(outputs: object, inputs: object, *rest: Any, **named: Any) -> list[Any]:
    """Returns the tensors whose gradients `torch.autograd.grad` computes."""
    return jax.tree.leaves(inputs)


def _gradient_of_constant() -> TraceError:
    return TraceError(
        "a local function computes the gradient of a CPU tensor, which is a constant for it.\n"
        "Train a copy: copy.deepcopy(module), tensor.detach().clone().requires_grad_(), or an "
        "argument."
    )


def _on(value: object, device: str) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == device


def _constant(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("jax")
