"""Programs drawn at random compute what numpy does, in chunks of any size."""

from typing import Any

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from calque import federated as fed

WIDTH = 2


@fed.local("float32[2]", framework="jax")
def squared(x: Any) -> Any:
    return x * x


@fed.local("float32[2]", "float32[2]")
def halfway(x: Any, y: Any) -> Any:
    return 0.5 * (x + y)


# Each operator on two values on the clients and one on the server, and its NumPy equivalent on rows
# and a vector.
ON_CLIENTS: dict[str, tuple[Any, Any]] = {
    "half": (lambda x, y, s: x * 0.5, lambda x, y, s: x * np.float32(0.5)),
    "less": (lambda x, y, s: x - y, lambda x, y, s: x - y),
    "squared": (lambda x, y, s: fed.federated_map(squared, x), lambda x, y, s: x * x),
    "halfway": (
        lambda x, y, s: fed.federated_map(halfway, (x, fed.federated_broadcast(s))),
        lambda x, y, s: np.float32(0.5) * (x + s),
    ),
    "zipped": (
        lambda x, y, s: fed.federated_zip({"b": y, "a": x})["b"],
        lambda x, y, s: y,
    ),
    "received": (
        lambda x, y, s: fed.federated_broadcast(s) + y,
        lambda x, y, s: s + y,
    ),
}
TO_SERVER: dict[str, tuple[Any, Any]] = {
    "mean": (lambda x, y, s: fed.federated_mean(x), lambda x, y, s: x.mean(0)),
    "least": (lambda x, y, s: fed.federated_min(x), lambda x, y, s: x.min(0)),
    "most": (lambda x, y, s: fed.federated_max(x - y), lambda x, y, s: (x - y).max(0)),
    "weighted": (
        lambda x, y, s: fed.federated_mean(x, (y * y)[0] + 1.0),
        lambda x, y, s: np.average(x, 0, y[:, 0] ** 2 + 1),
    ),
    "reduced": (
        lambda x, y, s: fed.federated_reduce(
            x, np.zeros(WIDTH, np.float32), lambda a, b: a * 0.5 + b
        ),
        lambda x, y, s: _reduced(x),
    ),
    "collected": (
        lambda x, y, s: fed.sequence_sum(fed.federated_collect(x)) * 0.1,
        lambda x, y, s: x.sum(0) * 0.1,
    ),
    "on the server": (
        lambda x, y, s: fed.federated_map(squared, s) * 0.5,
        lambda x, y, s: s * s / 2,
    ),
}


def _reduced(rows: np.ndarray) -> np.ndarray:
    value = np.zeros(WIDTH)
    for row in rows:
        value = value * 0.5 + row
    return value


Step = tuple[str, int, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from([*ON_CLIENTS, *TO_SERVER]),
        st.integers(0, 20),
        st.integers(0, 20),
        st.integers(0, 20),
    ),
    min_size=1,
    max_size=8,
)


def run(program: list[Step], way: int, clients: list[Any], server: list[Any]) -> dict[str, Any]:
    """Do the steps with operators of the language (0) or of numpy (1)."""
    for name, first, second, third in program:
        values = (
            clients[first % len(clients)],
            clients[second % len(clients)],
            server[third % len(server)],
        )
        if name in ON_CLIENTS:
            clients = [*clients, ON_CLIENTS[name][way](*values)]
        else:
            server = [*server, TO_SERVER[name][way](*values)]
    return {"clients": tuple(clients[1:]), "server": tuple(server)}


@settings(max_examples=25, deadline=None)
@given(program=steps, count=st.integers(1, 7), chunk=st.integers(1, 4), seed=st.integers(0, 99))
def test_a_program_computes_what_numpy_does(
    program: list[Step], count: int, chunk: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-1, 1, (count, WIDTH)).astype(np.float32)
    start = rng.uniform(-1, 1, WIDTH).astype(np.float32)

    @fed.computation("{float32[2]}@CLIENTS", "float32[2]@SERVER")
    def drawn(x: Any, s: Any) -> Any:
        return run(program, 0, [x], [s])

    found = drawn.configured(chunk=chunk)(rows, start)
    wanted = run(program, 1, [np.float64(rows)], [np.float64(start)])
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
