"""What is outside of a local function is constant: no write to it is lost in silence."""

import copy
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from calque import federated as fed
from calque.errors import TraceError

ONES = np.ones(3, np.float32)


def by_a_number(kept: torch.Tensor) -> None:
    kept.add_(1)


def under_autograd(kept: torch.Tensor) -> None:
    kept.data.mul_(2)


def to_an_element(kept: torch.Tensor) -> None:
    kept[0] += 1


def as_a_result(kept: torch.Tensor) -> None:
    torch.add(torch.ones(3, device=kept.device), 1, out=kept)


def by_random_numbers(kept: torch.Tensor) -> None:
    kept.normal_()


WRITES = [by_a_number, under_autograd, to_an_element, as_a_result, by_random_numbers]


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("write", WRITES)
def test_no_write_to_what_is_outside_runs_once_and_never_again(
    write: Callable[[torch.Tensor], None], device: str
) -> None:
    kept = torch.zeros(3, device=device)

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = kept

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            write(self.kept)
            return x

    def counted(x: torch.Tensor) -> torch.Tensor:
        write(kept)
        return x

    for function in (counted, Counting()):
        with pytest.raises(TraceError, match="writes to a tensor from outside") as caught:
            fed.local("float32[3]")(function)
        assert caught.traceback[-1].path.name == "test_constants.py"
        assert str(caught.traceback[-1].statement).strip() != "fed.local(function)"
    assert kept.tolist() == [0.0] * 3


def test_what_a_function_makes_on_the_cpu_it_may_write_to() -> None:
    @fed.local("float32[3]")
    def made(x: torch.Tensor) -> Any:
        found = torch.tensor([1.0, 2.0, 3.0], device="cpu")
        found += torch.ones(3, device="cpu")
        found[0] = 7.0
        found.view(-1)[1:].mul_(2)
        return x * found

    assert made(ONES).tolist() == [7.0, 6.0, 8.0]


def test_random_numbers_of_the_cpu_are_refused() -> None:
    with pytest.raises(fed.FederatedTypeError, match="the same numbers at every call"):
        fed.local("float32[3]")(lambda x: x + torch.rand(3, device="cpu"))


def test_a_module_that_writes_to_its_parameters_is_refused() -> None:
    class Growing(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weight.mul_(2)
            return super().forward(input)

    with pytest.raises(TraceError, match="writes to a tensor from outside"):
        fed.local("float32[3]")(Growing(3, 2))


class Remembering(nn.Module):
    """Keeps an average of what it has seen, and what it gave last."""

    def __init__(self) -> None:
        super().__init__()
        self.average = torch.zeros(())
        self.last: Any = None
        self.all: dict[str, Any] = {}

    def forward(self, x: torch.Tensor, average: bool = False) -> torch.Tensor:
        if average:
            self.average = 0.9 * self.average + 0.1 * x.mean()
        self.last = x + 1
        self.all["last"] = self.last
        return x + self.average


def test_attributes_hold_no_tensors_of_a_trace() -> None:
    module = Remembering()
    before = copy.copy(vars(module))
    assert fed.local("float32[3]")(module)(ONES).tolist() == [1.0] * 3
    assert fed.local("float32[?]")(lambda x: module(x))(ONES).tolist() == [1.0] * 3
    assert vars(module) == before and not module.all
    with pytest.raises(
        TraceError, match=r"module\.average \(.*test_constants\.py:\d+ in forward\) is changed"
    ):
        fed.local("float32[3]")(lambda x: module(x, average=True))
    assert vars(module) == before


def test_what_a_function_leaves_outside_is_not_lost_in_silence() -> None:
    kept: list[Any] = []
    total, module = torch.zeros(3), nn.Linear(3, 2)
    module.register_forward_hook(lambda module, args, output: kept.append(output))

    def appended(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x

    def added(x: torch.Tensor) -> torch.Tensor:
        nonlocal total
        total = total + x
        return total

    for function, name in ((appended, r"kept\[0\]"), (added, "total"), (module, r"kept\[0\]")):
        with pytest.raises(TraceError, match=f"{name} is assigned a tensor by the function"):
            fed.local("float32[3]")(function)
    assert (kept, total.tolist()) == ([], [0.0] * 3)


def test_a_computation_is_called_in_a_local_function() -> None:
    mean = fed.computation("{float32}@CLIENTS")(fed.federated_mean)
    cube = fed.local("float32[2]", scale="float32")(lambda x, scale: {"sum": (scale * x**3).sum()})

    @fed.local("float32[2]")
    def gradient(x: torch.Tensor) -> Any:
        own = torch.ones(2, requires_grad=True)
        cube(own * x, scale=mean(x))["sum"].backward()
        return own.grad

    assert gradient(np.float32([1.0, 3.0])).tolist() == [6.0, 162.0]


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_functions_of_the_other_framework_are_told_which_it_is(framework: Any) -> None:
    other: Any = torch.sin if framework == "jax" else jnp.sin
    with pytest.raises(TypeError) as caught:
        fed.local("float32[2]", framework=framework)(lambda x: other(x))
    assert "is a local function of" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("of", [np.asarray, torch.Tensor.numpy, lambda x: x.detach().numpy()])
def test_numpy_is_told_without_the_way_by_the_cpu(of: Callable[[Any], Any]) -> None:
    with pytest.raises(
        TraceError, match=r"test_constants.*: a tensor .* is converted to NumPy in a local function"
    ):
        fed.local("float32[3]")(lambda x: torch.tensor(of(x)))


def test_autocast_of_the_cpu_counts() -> None:
    weight = torch.randn(3, 3)

    @fed.local("float32[3,3]")
    def products(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            lower = x @ weight
            with torch.autocast("cpu", enabled=False):
                same = x @ weight
        return lower, same, x @ weight

    found = products(np.eye(3, dtype=np.float32))
    assert [one.dtype.name for one in found] == ["bfloat16", "float32", "float32"]
    np.testing.assert_array_equal(np.float32(found[0]), weight.bfloat16().float().numpy())
