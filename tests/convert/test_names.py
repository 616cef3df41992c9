"""What a converter is registered for is what calls are named, or an error."""

import operator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calque
from calque.convert import Calls, Converters
from calque.convert.names import function_names, operator_names


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, times: int = 2) -> Tensor:
        return x * times

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2, None


def program(x: Tensor, y: Tensor) -> Any:
    z: Any = Twice.apply(x.T.real + y)
    return z @ x.mT, x - y, torch.special.erf(x), F.max_pool2d(x[None], 1), torch.conv2d(y, y)


@pytest.mark.parametrize(
    "target",
    [
        *(Twice, Twice.apply, operator.add, operator.matmul, operator.sub, F.max_pool2d),
        *(torch.Tensor.T, "Tensor.real", "torch.Tensor.mT", torch.Tensor.matmul),
        *(torch.special.erf, "torch.special.erf", "torch.conv2d", F.conv2d),
        *("torch.nn.functional.max_pool2d", "aten.sub", torch.ops.aten.sub),
    ],
)
def test_a_function_is_claimed_by_each_of_its_names(target: Any) -> None:
    converters = Converters()
    converters.function(target)(lambda call: call.op)
    recording = calque.record(program, torch.rand(2, 2), torch.rand(1, 1, 2, 2))
    assert converters.coverage(recording).claimed.total() == 1


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ("relu", ValueError, "'relu' does not name a function.*'Tensor.relu'"),
        ("F.relu", ValueError, "'torch.nn.functional.relu'"),
        ("torch.rleu", ValueError, "no function 'torch.rleu'"),
        ("Tensor.rleu", ValueError, "tensors have no rleu"),
        ("aten.rleu.default", ValueError, "does not name a function"),
        ("torch.nn.ReLU", TypeError, "with `module`"),
        (nn.ReLU, TypeError, "with `module`"),
        (nn.ReLU(), TypeError, "with `module`"),
        (3, TypeError, "not a function or"),
    ],
)
def test_what_no_call_of_a_function_is_named_is_an_error(
    target: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Converters().function(target)


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ("relu", ValueError, "Name operators as 'aten.relu'"),
        ("aten.rleu", ValueError, "no operator 'aten.rleu'"),
        ("aten.relu.defalt", ValueError, "no operator"),
        ("Tensor.relu", ValueError, "with `function`"),
        (F.relu, TypeError, "with `function`"),
        (nn.ReLU, TypeError, "modules with `module`"),
    ],
)
def test_what_no_operator_is_named_is_an_error(
    target: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Converters().operator(target)


def test_names_that_are_not_pytorchs_are_taken_as_they_are() -> None:
    assert function_names("json.dumps") == ["json.dumps"]
    assert operator_names("torch.ops.aten.t.default") == ["aten.t.default"]


@pytest.mark.parametrize("target", [int, F.relu, "Conv2d"])
def test_only_classes_of_modules_are_modules(target: Any) -> None:
    with pytest.raises(TypeError, match="not a subclass of torch.nn.Module"):
        Converters().module(target)


def test_properties_and_functions_with_a_gradient_have_named_arguments() -> None:
    def short(x: Tensor) -> Tensor:
        y: Any = Twice.apply(x.T)
        return 2 - y

    graph = calque.record(short, torch.ones(2, 2)).graph()
    calls = {call.op.rpartition(".")[2]: call for call in Calls(graph)}
    assert list(calls["T"].arguments) == ["self"]
    assert list(calls["Twice_apply"].arguments) == ["x", "times"]
    assert calls["Twice_apply"].arguments["times"] == 2
    assert calls["__rsub__"].arguments["other"] == 2
