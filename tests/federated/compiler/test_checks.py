"""What is an error of a client's, and what is not."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from calque import federated as fed
from calque.errors import ClientError

log = fed.local("float32", framework="jax")(lambda x: jnp.log(x))


@pytest.mark.parametrize("chunk", [1, 2])
def test_padding_of_sequences_may_be_nan(chunk: int) -> None:
    @fed.local("float32*", framework="jax")
    def scaled(values: Any) -> Any:
        return fed.Sequence(values.elements / values.mask, values.length)

    made = fed.computation("{float32*}@CLIENTS")(lambda x: fed.federated_map(scaled, x))
    made = made.configured(chunk=chunk)
    found = made([[1.0, 2.0, 3.0], [4.0], [5.0, 0.0]])
    assert [found.elements[i, :n].tolist() for i, n in enumerate([3, 1, 2])] == [
        [1.0, 2.0, 3.0],
        [4.0],
        [5.0, 0.0],
    ]
    with pytest.raises(ClientError, match="client 1 passes NaN to federated_map"):
        made([[1.0, 2.0, 3.0], [4.0, np.nan]])


def test_an_error_says_that_the_server_has_nan_before() -> None:
    @fed.computation("float32@SERVER", "{float32}@CLIENTS")
    def scaled(scale: Any, x: Any) -> Any:
        return fed.federated_mean(fed.federated_broadcast(scale) * x)

    @fed.computation("{float32}@CLIENTS")
    def of_log(x: Any) -> Any:
        mean = fed.federated_map(log, fed.federated_mean(x))
        return fed.federated_mean(fed.federated_broadcast(mean) * x)

    for call in (lambda: scaled(np.nan, [1.0, 2.0]), lambda: of_log([-1.0, -2.0])):
        with pytest.raises(
            ClientError, match="federated_mean; values on the server contained NaN befo"
        ):
            call()
    for call in (lambda: scaled(1.0, [1.0, np.nan]), lambda: of_log([1.0, np.nan])):
        with pytest.raises(ClientError, match=r"client 1 passes NaN to federated_mean\.\n"):
            call()
