"""Distributes examples over clients, and draws the clients of a round."""

import numpy as np

from calque.errors import with_user_frames
from calque.federated.learning.training import is_positive


@with_user_frames
def dirichlet(
    labels: object, clients: int, concentration: float, seed: int = 0, least: int = 1
) -> list[np.ndarray]:
    """Returns indices of examples for each client, with a different mix of labels on each client.

    For each label, the clients' shares are drawn from a Dirichlet distribution (Hsu et al. 2019).
    They are drawn again until every client has at least `least` examples.

    Args:
        labels: one integer for each example.
        clients: the number of clients.
        concentration: a small number gives each client few labels, a large one the same mix to all.
        seed: the seed of the draw.
        least: the minimum number of examples of a client.

    Returns:
        An array of indices for each client; together they contain every example once.

    Raises:
        ValueError: no draw out of 1,000 gives every client enough examples, or an argument is
            invalid.

    >>> parts = dirichlet([0, 1] * 50, clients=4, concentration=100.0)
    >>> sorted(int(i) for part in parts for i in part) == list(range(100))
    True
    """
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(
            f"labels must be a vector, not an array of shape {list(labels.shape)}.\nFor scores "
            "or one-hot rows, pass argmax(1)."
        )
    if not (is_positive(clients) and 0 < concentration < np.inf):
        raise ValueError(
            "clients must be an integer of at least 1 and concentration a positive number, not "
            f"{clients!r} and {concentration!r}."
        )
    rng = np.random.default_rng(seed)
    for _ in range(1000 if len(labels) >= clients * least else 0):
        parts: list[list[int]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(clients, concentration))
            cuts = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(int)
            for part, some in zip(parts, np.split(rows, cuts), strict=True):
                part.extend(some.tolist())
        if min(map(len, parts)) >= least:
            return [np.array(sorted(part), np.intp) for part in parts]
    raise ValueError(
        f"{len(labels)} examples cannot be spread over {clients} clients with at least {least} "
        f"each.\nUse fewer clients, or a larger concentration than {concentration}."
    )


@with_user_frames
def sample_clients(clients: int, count: int, round: int, seed: int = 0) -> np.ndarray:
    """Returns the numbers of the clients that participate in a round, drawn without replacement.

    Args:
        clients: the number of all clients.
        count: the number of clients that participate.
        round: the number of the round; the same number gives the same clients.
        seed: the seed of all draws.

    >>> len(set(sample_clients(100, 10, round=3).tolist()))
    10
    """
    if not (is_positive(count) and count <= clients):
        raise ValueError(
            f"count must be between 1 and the number of clients, {clients}, not {count}"
        )
    return np.random.default_rng((seed, round)).choice(clients, count, replace=False)
