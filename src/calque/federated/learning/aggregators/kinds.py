"""The protocols of aggregators, with and without a state on the server."""

from collections.abc import Callable
from typing import Any, Protocol, TypeGuard

Aggregator = Callable[[Any, Any, Any], Any]
"""Takes `value` on the clients, a struct of the changes of parameters by name; `weight`, a number
on each client; and `key`, raw bits of a key on the server. Returns a struct like `value` on the
server.
"""


class StatefulAggregator(Protocol):
    """An aggregator with a state on the server."""

    def initial(self) -> Any:
        """Returns the state before the first round: a pytree of arrays."""
        ...

    def __call__(self, value: Any, weight: Any, key: Any, state: Any, /) -> tuple[Any, Any]:
        """Returns the aggregated value, and the state after the round."""
        ...


def is_private(aggregator: object) -> bool:
    """Returns True if an aggregator adds the noise of differential privacy."""
    return getattr(aggregator, "is_private", False)


def as_private_as(inner: object, aggregator: Aggregator) -> Aggregator:
    """Marks an aggregator that transforms values and then uses `inner` as private if `inner` is."""
    aggregator.is_private = is_private(inner)  # type: ignore[attr-defined]
    return aggregator


def is_stateful(
    aggregator: Aggregator | StatefulAggregator,
) -> TypeGuard[StatefulAggregator]:
    """Returns True if an aggregator has a state on the server."""
    return hasattr(aggregator, "initial")
