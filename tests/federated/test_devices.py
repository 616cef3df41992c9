"""A local function of PyTorch is written without a word about devices."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from calque import federated as fed
from calque.errors import TraceError

ONES = np.ones(3, np.float32)


def test_new_tensors_stand_beside_arguments() -> None:
    @fed.local("float32[3]")
    def total(x: Any) -> Any:
        found = torch.zeros(3)
        found += x * torch.arange(3)
        found[0] = x[0] + torch.tensor(0.5)
        return torch.stack([found, torch.ones(3)])

    assert total(ONES).tolist() == [[1.5, 1.0, 2.0], [1.0] * 3]


def test_a_function_without_arguments_makes_tensors() -> None:
    initial = fed.local()(lambda: torch.zeros(3) + 2)

    @fed.computation
    def start() -> Any:
        return fed.federated_eval(initial, fed.SERVER)

    assert start().tolist() == [2.0] * 3


def test_tensors_and_modules_on_the_cpu_are_constants() -> None:
    module, scale = nn.Linear(3, 2), torch.tensor([1.0, 2.0])
    both = fed.local("float32[3]")(lambda x: (module(x) * scale, scale))
    found, same = both(ONES)
    np.testing.assert_allclose(found, (module(torch.ones(3)) * scale).detach(), rtol=1e-6)
    assert same.tolist() == [1.0, 2.0]
    assert torch.zeros(1).device.type == "cpu"


def test_gradients_within_a_local_function_are_those_on_the_cpu() -> None:
    target = torch.tensor([1.0, 2.0, 3.0])

    @fed.local("float32[3]")
    def fitted(x: Any) -> Any:
        w = torch.zeros(3, requires_grad=True)
        ((w * x - target) ** 2).sum().backward()
        return w.grad

    assert fitted(ONES).tolist() == [-2.0, -4.0, -6.0]


def added(kept: torch.Tensor, x: Any) -> None:
    kept.add_(x)


def assigned(kept: torch.Tensor, x: Any) -> None:
    kept[0] = x[0]


def averaged(kept: torch.Tensor, x: Any) -> None:
    nn.functional.batch_norm(x.reshape(3, 1), kept[:1], kept[1:2], training=True)


@pytest.mark.parametrize("write", [added, assigned, averaged])
def test_writing_to_a_constant_is_an_error(write: Any) -> None:
    kept = torch.zeros(3)
    with pytest.raises(TraceError, match="a constant of a local function, is written to"):
        fed.local("float32[3]")(lambda x: [write(kept, x), x][1])
