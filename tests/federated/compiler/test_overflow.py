"""The sum of a sequence of integers fits its dtype or is an error, wherever it is computed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from calque import federated as fed
from calque.errors import ClientError

OF_CLIENTS: dict[str, Callable[[Any], Any]] = {
    "kept": fed.sequence_sum,
    "collected": lambda x: fed.federated_collect(fed.sequence_sum(x)),
    "aggregated": lambda x: fed.federated_max(fed.sequence_sum(x)),
    "reduced": lambda x: fed.federated_reduce(fed.sequence_sum(x), np.int8(0), lambda a, b: a),
    "in a function": lambda x: fed.federated_max(
        fed.federated_map(lambda s: fed.sequence_sum(s) * 0, x)
    ),
}


@pytest.mark.parametrize("name", OF_CLIENTS)
@pytest.mark.parametrize("chunk", [1, 2])
def test_the_client_is_named_whose_sum_does_not_fit(name: str, chunk: int) -> None:
    comp = fed.computation("{int8*}@CLIENTS")(OF_CLIENTS[name]).configured(chunk=chunk)
    comp([[100, 27], [], [-100, -28]])
    message = "test_overflow.py.*client 2 has integers whose sum does not fit int8"
    with pytest.raises(ClientError, match=message):
        comp([[1, 2], [], [100, 100]])
    comp.configured(check=False)([[1, 2], [], [100, 100]])


@pytest.mark.parametrize("kind", ["uint8*@SERVER", "uint8*"])
def test_a_sum_without_clients_has_to_fit_too(kind: str) -> None:
    comp = fed.computation(kind)(fed.sequence_sum)
    assert int(comp([200, 55])) == 255
    with pytest.raises(ClientError, match="a sum does not fit uint8 in sequence_sum"):
        comp([200, 56])


def test_what_is_summed_after_clients_have_given_it_has_to_fit() -> None:
    @fed.computation("{int32*}@CLIENTS")
    def of_all(x: Any) -> Any:
        return fed.sequence_sum(fed.federated_collect(fed.sequence_sum(x)))

    assert int(of_all([[2**31 - 2], [1]])) == 2**31 - 1
    with pytest.raises(ClientError, match="a sum does not fit int32 in sequence_sum"):
        of_all([[2**31 - 1], [1]])
