"""Partitions hold every example once; draws repeat with their seed."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calque.federated.learning import dirichlet, sample_clients

LABELS = np.repeat(np.arange(5), 40)


@settings(max_examples=20)
@given(st.integers(1, 20), st.sampled_from([0.1, 1.0, 100.0]), st.integers(0, 1000))
def test_every_example_belongs_to_one_client(clients: int, concentration: float, seed: int) -> None:
    parts = dirichlet(LABELS, clients, concentration, seed, least=0)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts)) == list(range(200))
    assert all(len(LABELS[part]) == len(part) for part in parts)


def test_the_concentration_says_how_different_clients_are() -> None:
    def dominance(concentration: float) -> float:
        parts = dirichlet(LABELS, 10, concentration)
        return float(np.mean([np.bincount(LABELS[p]).max() / len(p) for p in parts]))

    assert dominance(0.1) > 0.5
    assert dominance(1000.0) < 0.3


def test_the_seed_decides() -> None:
    first, again, other = (dirichlet(LABELS, 5, 1.0, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_what_cannot_be_spread_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be spread over 3 clients"):
        dirichlet([0, 1], 3, 1.0)


def test_clients_are_drawn_without_replacement_and_again_for_the_same_round() -> None:
    drawn = sample_clients(50, 20, round=4, seed=1)
    assert len(set(drawn.tolist())) == 20
    np.testing.assert_array_equal(drawn, sample_clients(50, 20, round=4, seed=1))
    assert not np.array_equal(drawn, sample_clients(50, 20, round=5, seed=1))
    with pytest.raises(ValueError, match="must be between 1 and the number of clients, 3, not 4"):
        sample_clients(3, 4, round=0)


@pytest.mark.parametrize(
    ("labels", "clients", "concentration", "said"),
    [
        (np.eye(5), 2, 1.0, r"not an array of shape \[5, 5\]"),
        (LABELS, 0, 1.0, "not 0 and"),
        (LABELS, 2.5, 1.0, "not 2.5 and"),
        (LABELS, 2, 0.0, "not 2 and 0.0"),
        (LABELS, 2, float("nan"), "not 2 and nan"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    labels: Any, clients: Any, concentration: float, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        dirichlet(labels, clients, concentration, least=0)
