"""`calque.from_jax`: a JAX function as a differentiable PyTorch function."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from jax import Array

from calque.device.backend.interop import to_jax
from calque.device.memory.wrapping import wrap
from calque.device.runtime.in_flight import settled
from calque.program import signature
from calque.upstream.jax_internals import enable_x64


def from_jax(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A JAX function as a PyTorch function on the device "jax".

    The function is compiled by `jax.jit` once for each signature; Python values among the
    arguments are static. Gradients come from `jax.vjp` and flow through torch's autograd, also
    inside `calque.jit`; they cannot be differentiated again.

    Args:
        fn: takes and returns pytrees of JAX arrays and Python values. Inside it, 64-bit types are
            on if an argument has one; otherwise the user's JAX configuration decides.

    Returns:
        A function that takes and returns the same pytrees, with tensors in place of arrays.

    Raises:
        RuntimeError: when called with a tensor that is not on "jax".

    >>> import jax, torch, calque
    >>> softplus = calque.from_jax(jax.nn.softplus)
    >>> x = torch.zeros(2, device="jax", requires_grad=True)
    >>> softplus(x).sum().backward()
    >>> x.grad.tolist()
    [0.5, 0.5]
    """
    compiled = functools.lru_cache(maxsize=None)(lambda *static: _Compiled(fn, *static))

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = signature.flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        _check(tensors)
        static = tuple(
            None if isinstance(leaf, torch.Tensor) else (type(leaf), leaf) for leaf in leaves
        )
        differentiable = tuple(_differentiable(t) for t in tensors)
        program = compiled(spec, static, differentiable if torch.is_grad_enabled() else None)
        if not torch.is_grad_enabled() or not any(differentiable):
            return program.unflatten([wrap(a) for a in program.run(_arrays(tensors))])
        results = _Apply.apply(program, *tensors)
        return program.unflatten(list(results))

    return call


class _Compiled:
    """A JAX function for one structure of arguments, its forward and its pullback jitted."""

    def __init__(
        self,
        fn: Callable[..., Any],
        spec: Any,
        static: tuple[Any, ...],
        differentiable: tuple[bool, ...] | None,
    ) -> None:
        self._fn, self._spec, self._static = fn, spec, static
        self._wanted = [i for i, d in enumerate(differentiable or ()) if d]
        self._run = jax.jit(self._flat)
        self._forward = jax.jit(self._with_pullback)
        self._pull = jax.jit(_pulled)

    def _flat(self, *arrays: Array) -> list[Array]:
        items = iter(arrays)
        leaves = [next(items) if s is None else s[1] for s in self._static]
        args, kwargs = signature.unflatten(leaves, self._spec)
        outputs, self._out = jax.tree_util.tree_flatten(self._fn(*args, **kwargs))
        return [jax.numpy.asarray(o) for o in outputs]

    def _with_pullback(self, *arrays: Array) -> Any:
        def of_wanted(*wanted: Array) -> tuple[list[Array], list[Array]]:
            filled = list(arrays)
            for position, array in zip(self._wanted, wanted, strict=True):
                filled[position] = array
            outputs = self._flat(*filled)
            self.carrying = [i for i, o in enumerate(outputs) if _is_inexact(o)]
            return [outputs[i] for i in self.carrying], outputs

        _, pullback, outputs = jax.vjp(of_wanted, *[arrays[i] for i in self._wanted], has_aux=True)
        return outputs, pullback

    def run(self, arrays: list[Array]) -> list[Array]:
        """The flat results."""
        with _precision(arrays):
            return settled(self._run(*arrays))

    def forward(self, arrays: list[Array]) -> tuple[list[Array], Any]:
        """The flat results, and the pullback as a pytree."""
        with _precision(arrays):
            return settled(self._forward(*arrays))

    def pull(self, pullback: Any, incoming: list[Array], count: int) -> list[Array | None]:
        """The gradient of each tensor argument, None where there is none."""
        with _precision(incoming):
            found = settled(self._pull(pullback, incoming))
        gradients: list[Array | None] = [None] * count
        for position, gradient in zip(self._wanted, found, strict=True):
            gradients[position] = gradient
        return gradients

    def unflatten(self, results: list[Any]) -> Any:
        """The results in the function's own structure."""
        return jax.tree_util.tree_unflatten(self._out, results)


def _pulled(pullback: Any, incoming: list[Array]) -> list[Array]:
    """PyTorch's gradients. Those of complex numbers are the conjugates of JAX's."""
    conj = jax.numpy.conj
    return [conj(gradient) for gradient in pullback([conj(one) for one in incoming])]


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, program: _Compiled, *tensors: torch.Tensor) -> Any:
        outputs, ctx.pullback = program.forward(_arrays(list(tensors)))
        ctx.program, ctx.count = program, len(tensors)
        results = [wrap(array) for array in outputs]
        carrying = set(program.carrying)
        ctx.mark_non_differentiable(*[r for i, r in enumerate(results) if i not in carrying])
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *incoming: torch.Tensor) -> Any:
        arrays = [to_jax(incoming[i]) for i in ctx.program.carrying]
        gradients = ctx.program.pull(ctx.pullback, arrays, ctx.count)
        return None, *[None if g is None else wrap(g) for g in gradients]


def _arrays(tensors: list[torch.Tensor]) -> list[Array]:
    return [to_jax(t.detach()) for t in tensors]


def _check(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        if tensor.device.type != "jax":
            raise RuntimeError(
                f"a JAX function takes tensors on device 'jax', not on {tensor.device}: move it "
                "with .to('jax')"
            )


def _differentiable(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())


def _is_inexact(array: Array) -> bool:
    return jax.numpy.issubdtype(array.dtype, jax.numpy.inexact)


class _precision:
    """64-bit types on if an array has one; else as the configuration says."""

    def __init__(self, arrays: list[Array]) -> None:
        wide = any(np.dtype(a.dtype).itemsize >= 8 and a.dtype != np.complex64 for a in arrays)
        self._value = True if wide else enable_x64.get_global()

    def __enter__(self) -> None:
        self._previous = enable_x64.swap_local(self._value)

    def __exit__(self, *_: object) -> None:
        enable_x64.set_local(self._previous)
