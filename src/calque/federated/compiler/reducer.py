"""The interface of aggregations, which add the values of a chunk of clients to a running result.

A reducer gets the stacked values of `k` clients at a time; those whose mask is False are padding
and must be ignored. `across` combines the running results of several devices.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from calque.federated.building_blocks import BuildingBlock, Call, Struct
from calque.federated.compiler import sums
from calque.federated.compiler.evaluating import Environment, evaluate

COUNT = "#clients"
"""The name of the number of clients in environments."""


class ValueRefusal(NamedTuple):
    """A condition on the values of all clients together.

    Attributes:
        what: the error message.
        flag: whether the condition is violated.
        remedy: what to do about it.
    """

    what: str
    flag: Any
    remedy: str = "Check the clients' data"


class Reducer:
    """An aggregation of one stage.

    Args:
        call: the call of the intrinsic.
        environment: the values on the server and without a placement.
    """

    shows_nan = True
    """True if a NaN of a client always yields NaN in the result, so that only that must be checked.
    """

    of_none = True
    """True if there is a result without clients."""

    def __init__(self, call: Call, environment: Environment) -> None:
        assert call.argument is not None
        self.call = call
        argument = call.argument
        self.parts: list[BuildingBlock] = (
            list(argument.children()) if isinstance(argument, Struct) else [argument]
        )
        self.environment = environment
        self.prepare()

    def prepare(self) -> None:
        """Evaluate the parts that are not on the clients."""

    def of_client(self, environment: Environment) -> Any:
        """Returns the contribution of one client."""
        assert self.call.argument is not None
        return evaluate(self.call.argument, environment)

    def start(self, one: Any) -> Any:
        """Returns the running result before any client; `one` has the shapes of a contribution."""
        raise NotImplementedError

    def add(self, running: object, values: object, mask: object, clients: object) -> Any:
        """Returns the running result after adding a chunk of clients."""
        raise NotImplementedError

    def across(self, running: object, axis: str) -> Any:
        """Returns the running result of all devices along a mesh axis."""
        raise NotImplementedError

    def finish(self, running: object, clients: int) -> Any:
        """Returns the result."""
        return running

    def violated(self, contribution: object) -> Any:
        """Returns True if a client's contribution is invalid for a reason other than NaN."""
        return None

    def refused(self, running: object) -> ValueRefusal | None:
        """Returns the condition on all clients together, and whether it is violated."""
        return None


def masked(values: Any, mask: Any, instead: Any) -> Any:
    """Returns the values of a chunk with padding replaced."""
    shaped = mask.reshape(-1, *[1] * (values.ndim - 1))
    return jnp.where(shaped, values, jnp.asarray(instead, values.dtype))


def gathered(running: Any, axis: str) -> Any:
    """Returns the running results of all devices, stacked; the same on each of them."""
    place, count = jax.lax.axis_index(axis), jax.lax.axis_size(axis)

    def gather(leaf: Any) -> Any:
        whole = jnp.zeros((count, *leaf.shape), leaf.dtype).at[place].set(leaf)
        if leaf.dtype == jnp.bool_:
            return jax.lax.psum(whole.astype(jnp.int32), axis).astype(bool)
        return sums.over_devices(whole, axis)

    return jax.tree.map(gather, running)
