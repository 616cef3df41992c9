"""A local function of PyTorch is written without a word about devices."""

import copy
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
    with pytest.raises(TraceError, match="a local function writes to a tensor from outside"):
        fed.local("float32[3]")(lambda x: [write(kept, x), x][1])


def test_a_copy_of_a_module_on_the_cpu_is_trained() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    x = torch.randn(5, 3)

    def trained(x: Any) -> Any:
        own = copy.deepcopy(module)
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            (own(x)[:, 0] - x[:, 0]).square().mean().backward()
            optimizer.step()
        return {name: tensor.detach() for name, tensor in own.state_dict().items()}

    found = fed.local("float32[?,3]")(trained)(x)
    for name, tensor in trained(x).items():
        np.testing.assert_allclose(found[name], tensor, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_clone_of_a_tensor_on_the_cpu_is_written_and_trained() -> None:
    start = torch.tensor([1.0, 2.0, 3.0])

    @fed.local("float32[3]")
    def fitted(x: Any) -> Any:
        w, kept = start.clone().requires_grad_(), start.clone()
        (w * x).square().sum().backward()
        kept[0] = 7.0
        return w.grad, kept

    gradient, kept = fitted(ONES)
    assert (gradient.tolist(), kept.tolist()) == ([2.0, 4.0, 6.0], [7.0, 2.0, 3.0])
    assert start.tolist() == [1.0, 2.0, 3.0]


def stepped(module: nn.Linear, x: Any) -> Any:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(x).sum().backward()
    optimizer.step()
    return module.weight


def read(module: nn.Linear, x: Any) -> Any:
    module(x).sum().backward()
    return module.weight.grad


def asked(module: nn.Linear, x: Any) -> Any:
    return torch.autograd.grad(module(x).sum(), [module.weight])


@pytest.mark.parametrize("train", [stepped, read, asked])
def test_the_gradient_of_a_constant_is_not_lost_in_silence(train: Any) -> None:
    module = nn.Linear(3, 1)
    with pytest.raises(TraceError, match=r"computes the gradient of a CPU tensor(.|\n)*deepcopy"):
        fed.local("float32[3]")(lambda x: train(module, x))

    @fed.local("float32[3]")
    def fitted(x: Any) -> Any:  # the module's device is not read
        w = torch.zeros(1, requires_grad=True)
        (module(x) * w - 1).square().sum().backward()
        return w.grad

    assert fitted(ONES).shape == (1,)


def test_compiled_functions_run_as_they_were_written() -> None:
    compiled = torch.compile(lambda x: x + torch.ones(3), backend="eager")
    assert fed.local("float32[3]")(compiled)(ONES).tolist() == [2.0] * 3


def test_batchnorm_in_training_is_refused_in_words_that_fit() -> None:
    with pytest.raises(TraceError, match="writes to the buffer 'running_mean': call"):
        fed.local("float32[4,3]")(nn.BatchNorm1d(3))


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adamax", "ASGD", "RAdam", "Adafactor", "NAdam"])
def test_optimizers_of_pytorch_step_in_local_functions(name: str) -> None:
    def fitted(x: Any) -> Any:
        own = nn.Parameter(torch.zeros(3))
        optimizer = getattr(torch.optim, name)([own])
        for _ in range(7):
            optimizer.zero_grad()
            (own - x).square().sum().backward()
            optimizer.step()
        assert own.grad is not None
        return own.detach()

    target = torch.tensor([1.0, -2.0, 0.5])
    found = fed.local("float32[3]")(fitted)(target)
    np.testing.assert_allclose(found, fitted(target), rtol=1e-4, atol=1e-6)
