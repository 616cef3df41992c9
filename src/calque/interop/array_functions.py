"""The programs of a functional module as functions of arrays, which JAX may transform."""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from calque.device.memory.cell import x64
from calque.errors import TraceError
from calque.program.jaxprs import prune
from calque.program.manual_axes import axes_of, run_varying


def picking(jaxpr: ClosedJaxpr, places: list[int], constant: bool) -> Callable[..., Any]:
    """Returns a program as a function of all arrays; `constant` if its derivative is zero."""
    pruned, kept = prune(jaxpr)
    function = in_64_bits(pruned)

    def run(*arrays: Array) -> list[Array]:
        own = [arrays[places[i]] for i in kept]
        return function(*(jax.lax.stop_gradient(own) if constant else own))

    return run


def refusing(run: Callable[..., Any], used_up: dict[int, str]) -> Callable[..., Any]:
    """Returns a function some of whose results raise given errors when differentiated."""

    def refusal(said: str) -> Callable[..., Array]:
        @jax.custom_vjp
        def same(array: Array, inputs: tuple[Array, ...]) -> Array:
            return array

        def refuse(_: None, incoming: Any) -> Any:
            raise TraceError(_words(said))

        same.defvjp(lambda array, inputs: (array, None), refuse)
        return same

    marks = {index: refusal(said) for index, said in used_up.items()}

    def marked(*arrays: Array) -> list[Array]:
        # These have a derivative even if they do not depend on the arrays.
        results = enumerate(run(*arrays))
        return [marks[i](a, arrays) if i in marks else a for i, a in results]

    return marked


def _words(said: str) -> str:
    """Returns the message for a result whose backward pass raised an error in PyTorch."""
    said = said.strip().partition("\n")[0].rstrip(".")
    if "second time" not in said:
        return (
            f"the backward pass of a result that is differentiated raises an error: {said}.\n"
            "Return result.detach() if its derivative should be zero."
        )
    return (
        "the graph of a result that is differentiated was already freed by backward() or grad() "
        f"in the function.\nPyTorch's error: {said}.\nReturn result.detach() if its derivative "
        "should be zero, or keep the graph: create_graph=True."
    )


def in_64_bits(jaxpr: ClosedJaxpr) -> Callable[..., Any]:
    """Returns a function that runs a program with 64-bit types, also when it is transformed."""
    function = jaxpr_as_fun(jaxpr)

    def run(*arrays: Array) -> list[Array]:
        axes = axes_of(arrays)
        with x64():
            return run_varying(jaxpr, axes, arrays) if axes else function(*arrays)

    return run
