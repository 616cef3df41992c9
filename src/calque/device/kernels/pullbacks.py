"""Pullbacks of JAX functions, split into residuals and a function of them."""

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
"""The positions of the leaves whose gradients are needed."""


def is_none(value: object) -> bool:
    """Returns True for None, which is a leaf among the arguments."""
    return value is None


def pullback_of(function: Callable[..., Any], wanted: Wanted, args: Sequence[Any]) -> Any:
    """Returns `jax.vjp` with respect to the wanted leaves of the arguments."""
    leaves, tree = jax.tree.flatten(list(args), is_leaf=is_none)

    def of(*values: Array) -> Any:
        filled = list(leaves)
        for place, value in zip(wanted, values, strict=True):
            filled[place] = value
        return function(*jax.tree.unflatten(tree, filled))

    return jax.vjp(of, *[leaves[place] for place in wanted])


def cotangent(result: Any, gradient: Array | None) -> Any:
    """Returns an incoming gradient in JAX's form: conjugated, with zeros for None and float0 for
    integers.
    """
    if not jnp.issubdtype(result.dtype, jnp.inexact):
        return np.zeros(result.shape, jax.dtypes.float0)
    if gradient is None:
        return jnp.zeros(result.shape, result.dtype)
    value = gradient.astype(result.dtype)
    return jnp.conj(value) if jnp.iscomplexobj(value) else value


def conjugated(gradients: Sequence[Array]) -> list[Array]:
    """Returns JAX's gradients in PyTorch's convention for complex numbers."""
    return [jnp.conj(one) if jnp.iscomplexobj(one) else one for one in gradients]


def _form(result: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(result.shape, result.dtype)


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Pullback:
    """The values that a forward pass saves for the backward pass.

    Attributes:
        residuals: the arrays of the pullback that are not arguments of the function.
        tree: the structure of the pullback.
        places: for each array of the pullback, the index of the argument that it is, or -1.
        results: the shapes and dtypes of the function's results, if requested.
    """

    residuals: list[Array]
    tree: Any
    places: tuple[int, ...]
    results: tuple[jax.ShapeDtypeStruct, ...] = ()

    @classmethod
    def of(cls, pull: Any, arguments: Sequence[Any], results: Sequence[Array] = ()) -> "Pullback":
        """Splits a function returned by `jax.vjp`.

        Args:
            pull: the function.
            arguments: the flat arguments of the forward pass.
            results: the results of the forward pass.
        """
        known = {id(argument): place for place, argument in enumerate(arguments)}
        arrays, tree = jax.tree.flatten(pull)
        places = tuple(known.get(id(array), -1) for array in arrays)
        residuals = [a for a, p in zip(arrays, places, strict=True) if p < 0]
        return cls(residuals, tree, places, tuple(map(_form, results)))

    def over(self, arguments: Sequence[Any]) -> Callable[..., Any]:
        """Returns the original function, for the arguments of the forward pass."""
        rest = iter(self.residuals)
        arrays = [next(rest) if p < 0 else arguments[p] for p in self.places]
        return jax.tree.unflatten(self.tree, arrays)

    def tree_flatten(self) -> Any:
        """Returns the residuals, and the other fields as static data."""
        return self.residuals, (self.tree, self.places, self.results)

    @classmethod
    def tree_unflatten(cls, aux: Any, residuals: Any) -> "Pullback":
        """Inverts `tree_flatten`."""
        return cls(list(residuals), *aux)


def pull_back(
    pullback: Pullback, arguments: list[Array | None], gradients: list[Any]
) -> list[Array]:
    """Returns the gradients of the wanted arguments."""
    arrays, tree = jax.tree.flatten((pullback, arguments, gradients))
    puller = _puller(tree, tuple(array.shape for array in arrays))
    return settled(puller(pullback, arguments, gradients))


@kept
def _puller(tree: object, shapes: tuple[Any, ...]) -> Callable[..., list[Array]]:
    def pulled(pullback: Pullback, arguments: Any, gradients: Any) -> list[Array]:
        pull = pullback.over(arguments)
        return conjugated(pull(tuple(map(cotangent, pullback.results, gradients))))

    return jax.jit(pulled)
