"""The privacy that noise guarantees, computed by dp-accounting (the extra `privacy`)."""

import importlib
from typing import Any

from calque.errors import with_user_frames


@with_user_frames
def epsilon(
    noise_multiplier: float, rounds: int, *, clients: int, participants: int, delta: float
) -> float:
    """Returns the ε of (ε, δ)-differential privacy of clients, after rounds with
    `aggregators.dp_gaussian`.

    Neighbours are federations in which one client has different data. Each round is one Gaussian
    mechanism on `participants` clients, drawn without replacement by `sample_clients`; rounds are
    composed by Rényi differential privacy (Mironov 2017; Wang et al. 2019). Replacing a client
    moves the sum by up to twice the norm, which this takes into account.

    Args:
        noise_multiplier: as for `aggregators.dp_gaussian`.
        rounds: the number of rounds.
        clients: the number of all clients.
        participants: the number of clients that participate in a round.
        delta: the δ, well below `1 / clients`.

    Raises:
        ImportError: dp-accounting is not installed.
        ValueError: a number is out of range.

    Returns:
        The ε; infinity without noise.
    """
    if not 0 < participants <= clients:
        raise ValueError(
            f"participants must be between 1 and the number of clients, {clients}, not "
            f"{participants}"
        )
    if not 0 < delta < 1 or rounds < 0 or not noise_multiplier >= 0:
        raise ValueError("delta must be between 0 and 1, and rounds and noise at least 0")
    if rounds == 0:
        return 0.0
    if noise_multiplier == 0:
        return float("inf")
    accounting: Any = importlib.import_module("dp_accounting")
    rdp: Any = importlib.import_module("dp_accounting.rdp")
    noise = accounting.GaussianDpEvent(noise_multiplier / 2)
    sampled = accounting.SampledWithoutReplacementDpEvent(clients, participants, noise)
    event = noise if participants == clients else sampled
    relation = accounting.NeighboringRelation.REPLACE_ONE
    accountant = rdp.RdpAccountant(neighboring_relation=relation)
    return float(accountant.compose(event, rounds).get_epsilon(delta))
