"""Converters get plain records of calls, and what nobody claims is told and stands aside."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calque
from calque.convert import Call, Calls, Converters, Placeholder, TensorInfo, WeightInfo
from tests.convert.models import Residual


def call_of(program: Any, *args: Tensor, op: str = "") -> Call:
    calls = list(Calls(calque.record(program, *args).graph()))
    return next(call for call in calls if op in call.op)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: torch.conv2d(x, w, None, 1, 1),
        lambda x, w: F.conv2d(x, w, padding=1),
        lambda x, w: F.conv2d(weight=w, input=x, padding=(1, 1), stride=[1, 1]),
    ],
)
def test_arguments_have_their_names_however_they_are_written(program: Any) -> None:
    call = call_of(program, torch.ones(1, 2, 4, 4), torch.ones(3, 2, 3, 3))
    assert call.op == "torch.nn.functional.conv2d"
    x, w = TensorInfo("x", (1, 2, 4, 4), "float32"), TensorInfo("w", (3, 2, 3, 3), "float32")
    given = dict(call.arguments)
    assert {*given.pop("stride"), *given.pop("padding")} == {1}
    assert given == {"input": x, "weight": w, "bias": None, "dilation": [1, 1], "groups": 1}
    assert call.inputs == [x, w]


@pytest.mark.parametrize(
    ("program", "op", "arguments"),
    [
        (lambda x: x.view(3, -1), "Tensor.view", {"size": [3, -1]}),
        (lambda x: x.view((3, -1)), "Tensor.view", {"size": (3, -1)}),
        (lambda x: x.sum(-1), "Tensor.sum", {"dim": [-1], "keepdim": False, "dtype": None}),
        (lambda x: torch.sum(x, dim=0), "torch.sum", {"dim": [0], "keepdim": False, "dtype": None}),
        (lambda x: x + 2, "Tensor.add", {"other": 2, "alpha": 1}),
        (lambda x: x.transpose(0, 1), "Tensor.transpose", {"dim0": 0, "dim1": 1}),
        (lambda x: torch.softmax(x, -1), "torch.softmax", {"dim": -1, "dtype": None}),
    ],
)
def test_methods_and_builtins_have_the_names_of_their_schemas(
    program: Any, op: str, arguments: dict[str, Any]
) -> None:
    call = call_of(program, torch.ones(2, 3))
    assert call.op == op
    own = dict(call.arguments)
    (first,) = [own.pop(name) for name in ("self", "input") if name in own]
    assert first == TensorInfo("x", (2, 3), "float32")
    assert own == arguments


def test_weights_come_as_arrays_with_their_names() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    call = call_of(model, torch.ones(1, 3))
    assert call.arguments["weight"] == WeightInfo("0.weight", (2, 3), "float32")
    np.testing.assert_array_equal(call.weights["0.weight"], model[0].weight.detach())
    half = call_of(nn.Sequential(nn.Linear(3, 2).bfloat16()), torch.ones(1, 3).bfloat16())
    assert half.weights["0.bias"].dtype.name == "bfloat16"


def test_several_results_have_a_name_each() -> None:
    calls = list(Calls(calque.record(lambda x: x.topk(2)[1] + 1, torch.ones(4)).graph()))
    assert [out.name for out in calls[0].outputs] == ["topk.0", "topk.1"]
    assert calls[1].arguments["self"] == TensorInfo("topk.1", (2,), "int64")


def test_the_source_is_the_line_of_the_program() -> None:
    call = call_of(Residual().eval(), torch.ones(1, 3, 8, 8), op="softmax")
    assert call.source is not None
    assert "softmax(-1)" in call.source.text


def registry() -> Converters:
    converters = Converters()

    @converters.function(torch.relu, F.relu)
    def relu(call: Call) -> Any:
        return "relu", call.inputs[0].name

    @converters.module(nn.Conv2d)
    def conv(call: Call) -> Any:
        return "conv", call.target.kernel_size, call.weights["weight"].shape

    return converters


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x)).erfinv() + x.erfinv().sum()


def test_what_is_claimed_is_converted_and_the_rest_is_a_placeholder() -> None:
    recording = calque.record(Small(), torch.ones(1, 3, 4, 4))
    converted = registry().convert(recording)
    assert converted.nodes[0] == ("conv", (3, 3), (4, 3, 3, 3))
    assert converted.nodes[1] == ("relu", "body_0")
    assert next(p.call.op for p in converted.placeholders) == "Tensor.erfinv"
    assert converted.inputs == [TensorInfo("x", (1, 3, 4, 4), "float32")]
    assert converted.outputs.shape == (1, 4, 2, 2)


def test_coverage_says_what_is_missing_where_and_how_often() -> None:
    coverage = registry().coverage(calque.record(Small(), torch.ones(1, 3, 4, 4)))
    assert not coverage.is_complete
    text = str(coverage)
    assert "2 x Tensor.erfinv" in text
    assert "test_registry.py:" in text


def test_a_converter_that_raises_leaves_a_placeholder_with_the_reason() -> None:
    converters = registry()

    @converters.module(nn.Conv2d)
    def conv(call: Call) -> Any:
        raise KeyError("dilation")

    (first, *_) = converters.convert(calque.record(Small(), torch.ones(1, 3, 4, 4))).nodes
    assert isinstance(first, Placeholder)
    assert first.reason == "KeyError: 'dilation'"


def test_composite_modules_are_claimed_whole_or_opened() -> None:
    recording = calque.record(Small(), torch.ones(1, 3, 4, 4))
    assert registry().convert(recording).nodes[0][0] == "conv"
    converters = registry()

    @converters.module(nn.Sequential)
    def sequence(call: Call) -> Any:
        return "sequence", call.path, sorted(call.weights)

    assert converters.convert(recording).nodes[0] == (
        "sequence",
        "body",
        ["0.bias", "0.weight"],
    )


def test_a_predicate_comes_before_the_rest_and_the_last_one_first() -> None:
    converters = registry()
    converters.when(lambda call: "relu" in call.op)(lambda call: "any relu")
    recording = calque.record(lambda x: torch.relu(x), torch.ones(2))
    assert converters.convert(recording).nodes == ["any relu"]
    converters.when(lambda call: True)(lambda call: "all")
    assert converters.convert(recording).nodes == ["all"]


def test_operators_are_converted_at_the_level_of_operators() -> None:
    converters = Converters(level="aten")

    @converters.operator(torch.ops.aten.addmm.default, "aten.t.default")
    def product(call: Call) -> Any:
        return call.op, list(call.arguments)

    nodes = converters.convert(calque.record(nn.Linear(3, 2), torch.ones(1, 3))).nodes
    assert nodes == [
        ("aten.t.default", ["self"]),
        ("aten.addmm.default", ["self", "mat1", "mat2", "beta", "alpha"]),
    ]


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (lambda x: torch.max(x, 1).values, {"dim": 1, "keepdim": False}),
        (lambda x: torch.min(x, 1, True).values, {"dim": 1, "keepdim": True}),
        (lambda x: x.var(1, unbiased=False), {"dim": [1], "unbiased": False, "keepdim": False}),
        (lambda x: x.std(1), {"dim": [1], "unbiased": True, "keepdim": False}),
        (lambda x: x + 1, {"other": 1, "alpha": 1}),
        (lambda x: torch.where(x > 0, x, 1), {"condition": None, "other": 1}),
    ],
)
def test_arguments_have_the_names_of_the_overload_that_is_called(
    program: Any, arguments: dict[str, Any]
) -> None:
    call = list(Calls(calque.record(program, torch.randn(2, 3)).graph()))[-1]
    found = {name: value for name, value in call.arguments.items() if name != "self"}
    if "condition" in found:
        found["condition"] = None
    assert found == arguments


def test_functions_have_the_names_by_which_programs_call_them() -> None:
    def program(x: Any) -> Any:
        return torch.einsum("ij->j", x) + x.new_zeros(3)

    converters = Converters()
    converters.function("torch.einsum", torch.Tensor.new_zeros, "Tensor.add")(lambda call: call.op)
    converted = converters.convert(calque.record(program, torch.ones(2, 3)))
    assert converted.nodes == ["torch.einsum", "Tensor.new_zeros", "Tensor.add"]


def test_results_in_nested_tuples_have_shapes() -> None:
    layer = torch.nn.LSTM(3, 4)
    converters = Converters()
    converters.module(torch.nn.LSTM)(lambda call: [out.shape for out in call.outputs])
    recording = calque.record(lambda x: layer(x)[1][0], torch.ones(2, 1, 3))
    converted = converters.convert(recording)
    assert converted.nodes == [[(2, 1, 4), (1, 1, 4), (1, 1, 4)]]
    assert converted.outputs.shape == (1, 1, 4)


def test_the_program_itself_is_claimed_as_a_whole() -> None:
    converters = Converters()

    @converters.module(nn.Linear)
    def linear(call: Call) -> Any:
        return call.path, call.op, call.weights["weight"].shape, call.inputs[0].name

    recording = calque.record(nn.Linear(3, 2), torch.ones(1, 3))
    assert converters.coverage(recording).is_complete
    assert converters.convert(recording).nodes == [("", "torch.nn.Linear", (2, 3), "input")]


def test_a_composite_module_is_claimed_whole_or_opened() -> None:
    converters = registry()
    recording = calque.record(Small(), torch.ones(1, 3, 4, 4))
    opened = converters.convert(recording).nodes

    @converters.module(Small)
    def small(call: Call) -> Any:
        return "small", call.outputs[0].shape, sorted(call.weights)

    whole = converters.convert(recording)
    assert whole.nodes == [("small", (1, 4, 2, 2), ["body.0.bias", "body.0.weight"])]
    assert len(opened) > 3
    assert whole.outputs.shape == (1, 4, 2, 2)


def test_a_program_of_which_a_part_is_used_elsewhere_is_opened() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.last = self.inner(x)
            return self.last * 2

    converters = Converters()
    converters.module(Keeps)(lambda call: "whole")
    converters.module(nn.Linear)(lambda call: "linear")
    nodes = converters.convert(calque.record(Keeps(), torch.ones(1, 2))).nodes
    assert "whole" not in nodes
    assert nodes[0] == "linear"
