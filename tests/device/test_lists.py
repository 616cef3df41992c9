"""Operators with lists of tensors on several devices."""

from typing import Any

import pytest
import torch
from torch import nn

import calque


@pytest.mark.parametrize("others", ["none", "list", "numbers"])
def test_each_tensor_of_a_list_is_written_on_its_own_device(others: str) -> None:
    def run(devices: tuple[str, str]) -> list[torch.Tensor]:
        targets = [torch.arange(3.0, device=device) for device in devices]
        if others == "none":
            torch._foreach_add_(targets, 1)
        elif others == "list":
            torch._foreach_addcmul_(targets, [t + 1 for t in targets], [t * 2 for t in targets])
        else:
            torch._foreach_mul_(targets, [2.0, 3.0])
        assert tuple(t.device.type for t in targets) == devices
        return [t.cpu() for t in targets]

    for devices in (("jax", "cpu"), ("cpu", "jax")):
        torch.testing.assert_close(run(devices), run(("cpu", "cpu")), rtol=0, atol=0)


def test_parameters_that_a_jitted_function_has_not_stepped_step_eagerly_with_the_others() -> None:
    """The steps of the others are counted on the device, and theirs on the CPU."""

    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        both = nn.Sequential(first, second).to(device)
        optimizer = torch.optim.AdamW(both.parameters(), lr=0.1)

        def step(model: Any) -> None:
            optimizer.zero_grad()
            model(torch.ones(1, 2, device=device)).square().mean().backward()
            optimizer.step()

        (calque.jit(step) if device == "jax" else step)(first)
        step(both)
        (calque.jit(step) if device == "jax" else step)(both)
        return [p.detach().cpu() for p in both.parameters()]

    torch.testing.assert_close(run("jax"), run("cpu"))
