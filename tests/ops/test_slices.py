"""Gradients of slices: right, and one executable for all starts."""

from collections.abc import Iterator

import jax
import pytest
import torch

import calque  # noqa: F401  (registers the device)


@pytest.fixture
def nothing_removed() -> Iterator[None]:
    """No compiled program is removed, as one is in turn where the tests keep a hundred."""
    before = torch.jax.get_max_programs()
    torch.jax.set_max_programs(1 << 20)
    yield
    torch.jax.set_max_programs(before)


def _gradient(x, take):
    x = x.detach().requires_grad_()
    y = take(x)
    y.backward(torch.arange(1.0, y.numel() + 1, device=y.device).view(y.shape))
    return x.grad


CASES = [
    lambda x: x[2:5],
    lambda x: x[-3:],
    lambda x: x[-30:4],
    lambda x: x[1::3],
    lambda x: x[:, 1:-1:2],
    lambda x: x[4:4],
    lambda x: x[3],
    lambda x: x[:, -2],
    lambda x: x[9:],
]


@pytest.mark.parametrize("take", CASES)
def test_gradients(take):
    x = torch.randn(9, 5)
    torch.testing.assert_close(_gradient(x.to("jax"), take).cpu(), _gradient(x, take))


@pytest.mark.parametrize("take", [lambda x, i: x[i : i + 3], lambda x, i: x[i]])
@pytest.mark.usefixtures("nothing_removed")
def test_a_new_start_compiles_nothing(take):
    x = torch.randn(11, 4, device="jax")
    _gradient(x, lambda x: take(x, 0))
    compiled = []

    def note(name, *_, **__):
        compiled.append(name)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        for start in (1, 3, 7, 8):
            _gradient(x, lambda x, i=start: take(x, i))
        assert not [name for name in compiled if "compile" in name]
        _gradient(x[:, 1:], lambda x: take(x, 2))
        assert [name for name in compiled if "compile" in name]
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
