"""Compiled functions of flat lists of arrays, and their JAX transformations.

Each is stored with its original function, so that it is compiled only once.
"""

import secrets
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.device.kernels.pullbacks import Pullback
from calque.device.runtime.in_flight import settled
from calque.errors import TraceError
from calque.upstream.jax_internals import enable_x64
from calque.upstream.python_internals import entered_unseen

Places = tuple[int, ...]


class JaxProgram:
    """A function from some arrays to a list of arrays, compiled by `jax.jit`.

    Attributes:
        number: identifies it in a PyTorch operator; unique across processes.
    """

    def __init__(self, function: Callable[..., list[Array]]) -> None:
        self.function = function
        self._run = jax.jit(function)
        self.tangent: Callable[[Places], JaxProgram] = cache(self._tangent)
        self.mapped: Callable[[tuple[int | None, ...]], JaxProgram] = cache(self._mapped)
        self.gradient: Callable[[Places, int], JaxProgram] = cache(self._gradient)
        self.residual: Callable[[Places], WithResiduals] = cache(self._with_residuals)
        self.number: int = secrets.randbits(62)
        _programs[self.number] = self

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Returns the results."""
        with precision(arrays):
            return settled(self._run(*arrays))

    def shapes(self, arrays: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
        """Returns the shapes and dtypes of the results for given arrays."""
        with precision(arrays):
            return jax.eval_shape(self._run, *arrays)

    def _gradient(self, wanted: Places, count: int) -> "JaxProgram":
        """Returns the gradients of the arrays at some positions, in PyTorch's convention.

        It takes `count` arrays, followed by the gradients of the results that are not integers.
        """

        def gradients(*arrays: Array) -> list[Array]:
            own, incoming = arrays[:count], arrays[count:]
            of = self._of(wanted, own)
            _, pullback, _ = jax.vjp(of, *[own[i] for i in wanted], has_aux=True)
            return pulled(pullback, incoming)

        return JaxProgram(gradients)

    def _with_residuals(self, wanted: Places) -> "WithResiduals":
        return WithResiduals(self, wanted)

    def _tangent(self, places: Places) -> "JaxProgram":
        """Returns the tangents of the results that are not integers.

        It takes the arrays, followed by the tangents of those at the given places.
        """

        def tangents(*arrays: Array) -> list[Array]:
            own, given = arrays[: -len(places)], arrays[-len(places) :]
            of = self._of(places, own)
            _, found, _ = jax.jvp(of, [own[i] for i in places], list(given), has_aux=True)
            return found

        return JaxProgram(tangents)

    def _mapped(self, axes: tuple[int | None, ...]) -> "JaxProgram":
        """Returns the function mapped over some axes, with the mapped axis of results first."""
        return JaxProgram(jax.vmap(self.function, axes))

    def _of(self, places: Places, arrays: Sequence[Array]) -> Callable[..., Any]:
        """Returns a function of the arrays at some positions that returns the inexact results, and
        all results.
        """

        def of(*wanted: Array) -> tuple[list[Array], list[Array]]:
            filled = list(arrays)
            for place, array in zip(places, wanted, strict=True):
                filled[place] = array
            results = self.function(*filled)
            return [one for one in results if is_inexact(one)], results

        return of


class WithResiduals:
    """A function that also returns residuals for its backward pass.

    Args:
        program: the function.
        wanted: the positions of the arrays whose gradients are needed.
    """

    def __init__(self, program: JaxProgram, wanted: Places) -> None:
        self._program = program
        self.wanted: Places = wanted
        self._run = jax.jit(self._forward)

        # A new function for each instance, because JAX caches compiled programs as long as their
        # function exists.
        def pull(pullback: object, incoming: Sequence[Array]) -> list[Array]:
            return pulled(pullback, incoming)

        self._pull = jax.jit(pull)

    def __call__(self, arrays: Sequence[Array]) -> tuple[list[Array], Pullback]:
        """Returns the results, and the residuals for the backward."""
        with precision(arrays):
            return settled(self._run(*arrays))

    def pull_back(
        self, pullback: Pullback, arguments: Sequence[Array], incoming: Sequence[Array]
    ) -> list[Array]:
        """Returns the gradients for the incoming gradients of the results that are not integers.

        Args:
            pullback: the residuals of a forward.
            arguments: the arguments of the forward.
            incoming: the incoming gradients.
        """
        with precision([*arguments, *incoming]):
            return settled(self._pull(pullback.over(arguments), list(incoming)))

    def _forward(self, *arrays: Array) -> Any:
        of = self._program._of(self.wanted, arrays)
        _, pullback, results = jax.vjp(of, *[arrays[i] for i in self.wanted], has_aux=True)
        return results, Pullback.of(pullback, arrays)


def pulled(pullback: Any, incoming: Sequence[Array]) -> list[Array]:
    """Returns PyTorch's gradients, which are the conjugates of JAX's for complex numbers."""
    return [jnp.conj(gradient) for gradient in pullback([jnp.conj(one) for one in incoming])]


_programs: WeakValueDictionary[int, JaxProgram] = WeakValueDictionary()
_named: dict[int, JaxProgram] = {}


def named(program: JaxProgram) -> int:
    """Returns the number of a program, and keeps the program for the life of the process."""
    _named[program.number] = program
    return program.number


def program_of(number: int) -> JaxProgram:
    """Returns the program with a number.

    Raises:
        TraceError: there is none.
    """
    program = _programs.get(number)
    if program is None:
        raise TraceError(
            "a graph calls a calque.from_jax function that this process does not have, because "
            "saved graphs do not include such functions. Build the graph again in this process, "
            "or save the program with calque.export"
        )
    return program


def is_inexact(array: Any) -> bool:
    """Returns True if an array does not hold integers."""
    return jnp.issubdtype(array.dtype, jnp.inexact)


class precision:
    """A context manager with 64-bit types if an array has one; otherwise as configured."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        wide = any(_is_wide(array.dtype) for array in arrays)
        self._value = True if wide else enable_x64.get_global()

    @entered_unseen
    def __enter__(self) -> None:
        # As in `x64`: no signal can interrupt between the swap, which C code performs, and the
        # assignment.
        (self._previous,) = map(enable_x64.swap_local, (self._value,))

    @entered_unseen
    def __exit__(self, *_: object) -> None:
        enable_x64.set_local(self._previous)


def _is_wide(dtype: Any) -> bool:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return False
    return np.dtype(dtype).itemsize >= 8 and dtype != np.complex64
