"""Seeds, states and forks of the device's random numbers; checkpointing draws the same again."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import calque  # noqa: F401


def draw() -> list[float]:
    return torch.rand(4, device="jax").tolist()


def test_a_seed_repeats_the_draws() -> None:
    torch.manual_seed(3)
    first = draw()
    assert draw() != first
    torch.manual_seed(3)
    assert draw() == first
    torch.jax.manual_seed(4)
    assert draw() != first
    assert torch.jax.initial_seed() == 4


def test_a_state_is_restored() -> None:
    draw()
    state = torch.jax.get_rng_state()
    assert (state.dtype, state.device.type, state.numel()) == (torch.uint8, "cpu", 16)
    first = draw()
    torch.jax.set_rng_state(state)
    assert draw() == first
    torch.jax.set_rng_state_all(torch.jax.get_rng_state_all())


def test_a_wrong_state_raises() -> None:
    with pytest.raises(RuntimeError, match="16 elements"):
        torch.jax.set_rng_state(torch.zeros(3, dtype=torch.uint8))


def test_a_fork_leaves_no_trace() -> None:
    torch.manual_seed(1)
    expected = draw()
    torch.manual_seed(1)
    with torch.random.fork_rng(device_type="jax"):
        torch.manual_seed(99)
        draw()
    assert draw() == expected


def test_fresh_seeds_differ() -> None:
    assert torch.jax.seed() != torch.jax.seed()


def test_the_device_has_its_module() -> None:
    assert torch.get_device_module("jax") is torch.jax
    with pytest.raises(RuntimeError, match="only index 0"):
        torch.jax.set_device(1)


def test_there_are_no_generators_of_the_device() -> None:
    for make in (lambda: torch.Generator("jax"), lambda: torch.Generator(device="jax")):
        with pytest.raises(NotImplementedError, match=r"torch\.jax\.manual_seed"):
            make()
    assert torch.Generator("cpu").manual_seed(3).initial_seed() == 3
    with pytest.raises(TypeError):
        torch.Generator(1, 2)
    with pytest.raises(RuntimeError, match="manual_seed"):
        torch.rand(2, device="jax", generator=torch.Generator())


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_draws_the_same_mask_again(reentrant: bool) -> None:
    x = torch.ones(64, device="jax", requires_grad=True)
    masks = []

    def block(x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(x, 0.5)
        masks.append(y.detach().tolist())
        return y * y

    out = checkpoint(block, x, use_reentrant=reentrant)
    torch.rand(1, device="jax")
    out.sum().backward()
    assert len(masks) == 2
    assert masks[0] == masks[1]
    assert 0 < masks[0].count(0) < 64
    torch.testing.assert_close(x.grad.cpu(), 4 * torch.tensor(masks[0]))
