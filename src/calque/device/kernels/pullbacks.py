"""What the backward of a JAX function needs of its forward: residuals, and a pullback over them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.device.runtime.compile_cache import kept
from calque.device.runtime.in_flight import settled

Wanted = tuple[int, ...]
"""The places of the leaves whose gradients are asked for."""


def is_none(value: Any) -> bool:
    """Returns True for None, which is a leaf among the arguments."""
    return value is None


def pullback_of(function: Callable[..., Any], wanted: Wanted, args: Sequence[Any]) -> Any:
    """`jax.vjp` with respect to the leaves of the arguments that are wanted."""
    leaves, tree = jax.tree.flatten(list(args), is_leaf=is_none)

    def of(*values: Array) -> Any:
        filled = list(leaves)
        for place, value in zip(wanted, values, strict=True):
            filled[place] = value
        return function(*jax.tree.unflatten(tree, filled))

    return jax.vjp(of, *[leaves[place] for place in wanted])


def cotangent(result: Any, gradient: Array | None) -> Any:
    """An incoming gradient as JAX takes it: zeros for none, float0 for integers, or conjugated."""
    if not jnp.issubdtype(result.dtype, jnp.inexact):
        return np.zeros(result.shape, jax.dtypes.float0)
    if gradient is None:
        return jnp.zeros(result.shape, result.dtype)
    value = gradient.astype(result.dtype)
    return jnp.conj(value) if jnp.iscomplexobj(value) else value


def conjugated(gradients: Sequence[Array]) -> list[Array]:
    """The gradients that JAX has computed, as PyTorch has those of complex numbers."""
    return [jnp.conj(one) if jnp.iscomplexobj(one) else one for one in gradients]


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Pullback:
    """The values that a forward leaves to its backward.

    Attributes:
        residuals: the arrays of the pullback that are no arguments of the operator.
        tree: the structure of the pullback.
        places: for each array of the pullback, the leaf of the arguments it is, or -1.
        results: the shapes and dtypes of the operator's results.
    """

    residuals: list[Array]
    tree: Any
    places: tuple[int, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]

    def tree_flatten(self) -> Any:
        """The residuals, and all else."""
        return self.residuals, (self.tree, self.places, self.results)

    @classmethod
    def tree_unflatten(cls, aux: Any, residuals: Any) -> "Pullback":
        """The inverse of `tree_flatten`."""
        return cls(list(residuals), *aux)


def pull_back(
    pullback: Pullback, arguments: list[Array | None], gradients: list[Any]
) -> list[Array]:
    """The gradients of the wanted arguments."""
    arrays, tree = jax.tree.flatten((pullback, arguments, gradients))
    puller = _puller(tree, tuple(array.shape for array in arrays))
    return settled(puller(pullback, arguments, gradients))


@kept
def _puller(tree: Any, shapes: tuple[Any, ...]) -> Callable[..., list[Array]]:
    def pulled(pullback: Pullback, arguments: Any, gradients: Any) -> list[Array]:
        residuals = iter(pullback.residuals)
        arrays = [next(residuals) if p < 0 else arguments[p] for p in pullback.places]
        pull = jax.tree.unflatten(pullback.tree, arrays)
        return conjugated(pull(tuple(map(cotangent, pullback.results, gradients))))

    return jax.jit(pulled)
