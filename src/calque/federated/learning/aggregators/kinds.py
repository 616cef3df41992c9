"""What an aggregator is: a function of values, with a state on the server or without."""

from collections.abc import Callable
from typing import Any, Protocol, TypeGuard

Aggregator = Callable[[Any, Any, Any], Any]


class StatefulAggregator(Protocol):
    """An aggregator for which the server keeps something from round to round."""

    def initial(self) -> Any:
        """What is kept before the first round: a pytree of arrays."""
        ...

    def __call__(self, value: Any, weight: Any, key: Any, state: Any, /) -> tuple[Any, Any]:
        """The joined value, and what is kept after the round."""
        ...


def is_stateful(
    aggregator: Aggregator | StatefulAggregator,
) -> TypeGuard[StatefulAggregator]:
    """Whether the server keeps something for an aggregator."""
    return hasattr(aggregator, "initial")
