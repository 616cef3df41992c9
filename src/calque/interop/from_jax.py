"""`calque.from_jax`: a JAX function as a differentiable PyTorch function."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from weakref import WeakSet

import jax
import numpy as np
import torch
from jax import Array

from calque.device.kernels.binding import untraced
from calque.device.memory.wrapping import wrap
from calque.device.runtime.dtypes import to_numpy
from calque.device.runtime.imports import when_imported
from calque.interop import jax_nodes
from calque.interop.jax_programs import JaxProgram
from calque.program import signature, trees
from calque.upstream.torch_internals import let_dynamo_call


def from_jax(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Turns a JAX function into a PyTorch function on the device "jax".

    The function is compiled by `jax.jit` once for each signature; Python values among the
    arguments are static. Gradients come from JAX and flow through PyTorch's autograd, also for
    higher derivatives; `torch.func`, `calque.jit` and `torch.compile` treat the function as one
    operator.

    Args:
        fn: takes and returns pytrees of JAX arrays and Python values. Inside it, 64-bit types are
            on if an argument has one; otherwise the user's JAX configuration decides. It receives
            arrays for tensors; arrays of JAX and NumPy among the arguments stay arrays.

    Returns:
        A function that takes and returns the same pytrees, with tensors in place of arrays.

    Raises:
        RuntimeError: when called with a tensor that is not on "jax".
        TypeError: `fn` is not a function; or, when called, an argument is not a tensor, an array or
            a hashable value.

    >>> import jax, torch, calque
    >>> softplus = calque.from_jax(jax.nn.softplus)
    >>> x = torch.zeros(2, device="jax", requires_grad=True)
    >>> softplus(x).sum().backward()
    >>> x.grad.tolist()
    [0.5, 0.5]
    """
    if not callable(fn):
        raise TypeError(f"calque.from_jax expects a JAX function, not {type(fn).__name__}")
    functions: dict[Any, _Function] = {}

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = trees.flatten((args, kwargs))
        _check([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
        static = [_kind(leaf) if _is_array(leaf) else leaf for leaf in leaves]
        key = (spec, *[signature.value_key(leaf) for leaf in static])
        function = functions.get(key)
        if function is None:
            places = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]
            function = functions[key] = _Function(fn, spec, static, places)
        return function([_tensor(leaf) for leaf in leaves if _is_array(leaf)])

    _callable_in_graphs.add(untraced(call))
    when_imported("torch._dynamo.trace_rules", _register_with_dynamo)
    return call


_callable_in_graphs: WeakSet[Callable[..., Any]] = WeakSet()


def _register_with_dynamo(rules: ModuleType) -> None:
    """Make `torch.compile` treat these functions as operators of its graphs."""
    while _callable_in_graphs:
        let_dynamo_call(rules, _callable_in_graphs.pop())


class _Function:
    """A JAX function for one structure of its arguments and fixed static values.

    Args:
        fn: the function.
        spec: the structure of the arguments.
        static: the leaves, with a `_Key` or None for arrays.
        places: the indexes of the arrays.
    """

    def __init__(
        self, fn: Callable[..., Any], spec: Any, static: list[Any], places: list[int]
    ) -> None:
        self._fn, self._spec, self._static, self._places = fn, spec, static, places
        self._forms: dict[Any, _Form] = {}  # by the shapes and dtypes of the arrays
        self._program = JaxProgram(self._flat)

    def _flat(self, *arrays: Array) -> list[Array]:
        leaves = list(self._static)
        for place, array in zip(self._places, arrays, strict=True):
            kind = leaves[place]
            leaves[place] = array if kind is None else kind.of(array)
        args, kwargs = trees.unflatten(leaves, self._spec)
        results, tree = jax.tree_util.tree_flatten(self._fn(*args, **kwargs))
        constants = [None if _is_number(result) else (result,) for result in results]
        key = tuple((array.shape, array.dtype) for array in arrays)
        self._forms[key] = _Form(tree, constants)
        return [_strong(result) for result in results if _is_number(result)]

    def __call__(self, tensors: list[torch.Tensor]) -> Any:
        """Returns the results in the function's own structure."""
        found = jax_nodes.call(self._program, tensors)
        key = tuple((tuple(map(int, t.shape)), to_numpy(t.dtype)) for t in tensors)
        if key not in self._forms:  # only traced, not run, so far
            self._program.shapes([jax.ShapeDtypeStruct(*one) for one in key])
        return self._forms[key].of(found)


@dataclass(frozen=True)
class _Key:
    """A JAX random key among the arguments.

    Attributes:
        kind: its random number generator.
    """

    kind: str

    def of(self, words: Array) -> Array:
        """Returns a key with the given words."""
        return jax.random.wrap_key_data(words, impl=self.kind)


@dataclass(frozen=True)
class _Form:
    """Rebuilds the results of a function from its flat results.

    Attributes:
        tree: their structure.
        constants: the results that are neither arrays nor numbers, each in a tuple; None for the
            rest.
    """

    tree: Any
    constants: list[tuple[Any] | None]

    def of(self, found: list[torch.Tensor]) -> Any:
        """Returns the results in the function's own structure."""
        rest = iter(found)
        leaves = [next(rest) if one is None else one[0] for one in self.constants]
        return jax.tree_util.tree_unflatten(self.tree, leaves)


def _strong(result: object) -> Array:
    """Returns a result as an array that is not weakly typed."""
    array = jax.numpy.asarray(result)
    return jax.lax.convert_element_type(array, array.dtype)


def _is_array(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor | Array | np.ndarray)


def _is_number(value: object) -> bool:
    return _is_array(value) or isinstance(value, np.generic | bool | int | float | complex)


def _is_key(leaf: object) -> bool:
    return isinstance(leaf, Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _kind(array: Any) -> _Key | None:
    return _Key(str(jax.random.key_impl(array))) if _is_key(array) else None


def _tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf
    return wrap(jax.random.key_data(leaf) if _is_key(leaf) else jax.numpy.asarray(leaf))


def _check(tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        if tensor.device.type != "jax":
            raise RuntimeError(
                f"a JAX function takes tensors on device 'jax', not on {tensor.device}: move the "
                "tensor with .to('jax')"
            )
