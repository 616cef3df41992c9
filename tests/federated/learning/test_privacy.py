"""The ε of noisy rounds, against what is known in closed form."""

import math

import pytest

from calque.federated import learning

pytest.importorskip("dp_accounting")


def gaussian(noise: float, rounds: int, delta: float) -> float:
    """An upper bound in closed form: Rényi composition of Gaussians of sensitivity one."""
    rho = rounds / (2 * noise**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


@pytest.mark.parametrize("rounds", [1, 10, 100])
def test_rounds_with_all_clients_are_composed_gaussians(rounds: int) -> None:
    found = learning.epsilon(20.0, rounds, clients=50, participants=50, delta=1e-4)
    bound = gaussian(10.0, rounds, 1e-4)  # a replaced client moves the sum by twice the norm
    assert 0.6 * bound < found <= bound


def test_fewer_participants_more_noise_and_fewer_rounds_give_more_privacy() -> None:
    def at(noise: float = 4.0, rounds: int = 20, participants: int = 100) -> float:
        return learning.epsilon(noise, rounds, clients=1000, participants=participants, delta=1e-5)

    assert at(noise=8.0) < at() < at(noise=2.0)
    assert at(rounds=10) < at() < at(rounds=40)
    assert at(participants=10) < at() < at(participants=1000)


def test_limits() -> None:
    some = {"clients": 10, "participants": 5, "delta": 1e-3}
    assert learning.epsilon(1.0, 0, **some) == 0
    assert learning.epsilon(0.0, 1, **some) == math.inf


@pytest.mark.parametrize(
    "wrong", [{"participants": 11}, {"delta": 0.0}, {"rounds": -1}, {"noise_multiplier": -1.0}]
)
def test_numbers_out_of_range_are_refused(wrong: dict) -> None:
    given = {"noise_multiplier": 1.0, "rounds": 1, "clients": 10, "participants": 5, "delta": 1e-3}
    with pytest.raises(ValueError):
        learning.epsilon(**{**given, **wrong})
