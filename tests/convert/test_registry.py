"""Converters get plain records of calls, and what nobody claims is told and stands aside."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calque
from calque.convert import (
    Call,
    Calls,
    Converters,
    Placeholder,
    TensorInfo,
    WeightInfo,
    load,
    save,
)
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
    assert first.place.startswith(f"{__file__}:") and " in " in first.place


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


class Memory:
    def __init__(self, kept: Tensor) -> None:
        self.kept = kept


class Remembers(nn.Module):
    """Gives an object with a tensor inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Any:
        return Memory(self.inner(x))


class Uses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory, self.norm, self.head = Remembers(), nn.BatchNorm1d(2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        kept = self.memory(x).kept
        self.norm.eval()
        kept = self.head(self.norm(kept))
        self.norm.train()
        return kept


@pytest.mark.parametrize("level", ["function", "aten"])
def test_a_module_that_is_claimed_and_opened_is_in_the_coverage(level: Any) -> None:
    converters = Converters(level)
    converters.module(Remembers, nn.BatchNorm1d, nn.Linear)(lambda call: call.op)
    coverage = converters.coverage(calque.record(Uses(), torch.ones(2, 2)))
    assert coverage.claimed == {"torch.nn.Linear": 2}
    memory, norm = coverage.opened
    assert (memory.op.rpartition(".")[2], memory.path) == ("Remembers", "memory")
    assert "returns an object that may hold tensors" in memory.reason
    assert norm.path == "norm"
    assert "changes it" in norm.reason
    assert (
        f"Remembers has a converter, but its contents are converted instead: {memory.reason}"
        in str(coverage)
    )
    assert "test_registry.py:" in str(memory.source)


def test_a_module_that_a_predicate_claims_and_that_is_opened_is_in_the_coverage() -> None:
    converters = Converters()
    converters.when(lambda call: call.arguments.get("x") == ("", (2, 2), "float32"))(id)
    converters.when(lambda call: call.kind == "module" and call.path == "head")(id)
    coverage = converters.coverage(calque.record(Uses(), torch.ones(2, 2)))
    assert [each.path for each in coverage.opened] == ["", "memory"]


def test_a_value_that_is_read_is_a_call_to_convert() -> None:
    recording = calque.record(lambda x: x * x.sum().item(), torch.ones(2))
    converted = Converters().convert(recording)
    assert "Tensor.item" in [placeholder.call.op for placeholder in converted.placeholders]


def test_an_operator_without_an_overload_is_all_of_them() -> None:
    recording = calque.record(lambda x: (x + x) * 2, torch.ones(2))
    for target in (torch.ops.aten.add, "aten.add"):
        converters = Converters(level="aten")
        converters.operator(target)(lambda call: call.op)
        assert converters.convert(recording).nodes[0] == "aten.add.Tensor"


def test_a_predicate_that_raises_leaves_a_placeholder_with_the_reason() -> None:
    converters = Converters()
    converters.when(lambda call: call.arguments["other"] == 2)(lambda call: call.op)
    recording = calque.record(lambda x: x.relu() * 2, torch.ones(2))
    relu, times = converters.convert(recording).nodes
    assert times == "Tensor.mul"
    assert "raised KeyError: 'other'" in relu.reason
    assert list(converters.coverage(recording).missing) == ["Tensor.relu"]


def test_what_cannot_be_registered_or_converted_is_told() -> None:
    with pytest.raises(ValueError, match="level must be 'function' or 'aten', not 'module'"):
        Converters(level="module")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="not a subclass of torch.nn.Module"):
        Converters().module(nn.ReLU())  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"calque\.record\(model"):
        Converters().convert(nn.ReLU())  # pyright: ignore[reportArgumentType]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) + x


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.first(self.second(self.first(x)).sum(0))


def test_a_predicate_claims_a_composite_module_whole() -> None:
    recording = calque.record(Shared(), torch.ones(2, 3))
    converters = Converters()

    @converters.when(lambda call: call.kind == "module" and call.path == "first")
    def first(call: Call) -> Any:
        return call.path, sorted(call.weights), call.arguments["x"].shape

    weights = ["linear.bias", "linear.weight"]
    nodes = converters.convert(recording).nodes
    assert [n for n in nodes if isinstance(n, tuple) and n[0] == "first"] == [
        ("first", weights, (2, 3)),
        ("first", weights, (3,)),
    ]
    opened = [n.call.op for n in nodes if isinstance(n, Placeholder)]
    assert opened == ["torch.nn.functional.linear", "torch.relu", "Tensor.add", "Tensor.sum"]
    assert converters.coverage(recording).claimed == {f"{Block.__module__}.Block": 2}


def test_a_predicate_claims_one_call_of_a_module_and_leaves_another() -> None:
    converters = Converters()

    @converters.when(lambda call: call.kind == "module" and call.inputs[0].shape == (3,))
    def vector(call: Call) -> Any:
        return call.inputs[0].name, call.outputs[0].shape

    nodes = converters.convert(calque.record(Shared(), torch.ones(2, 3))).nodes
    assert nodes[-1] == ("sum_1", (3,))
    assert len(nodes) == 8


def test_the_outermost_module_that_a_predicate_claims_is_one_call() -> None:
    recording = calque.record(Shared(), torch.ones(2, 3))
    converters = Converters()
    converters.when(lambda call: call.kind == "module")(lambda call: call.path)
    assert converters.convert(recording).nodes == [""]
    converters.when(lambda call: call.path == "")(lambda call: call.no_such_name)
    assert converters.convert(recording).placeholders[0].call.kind == "module"


class Several(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"sum": x.sum(), "parts": [x + 1, None], "pair": (x, {"twice": x * 2})}


@pytest.mark.parametrize("level", ["function", "aten"])
def test_results_of_a_module_in_any_containers_have_names_and_shapes(level: Any) -> None:
    inner = Several()
    converters = Converters(level)
    converters.module(Several)(lambda call: [(out.name, out.shape) for out in call.outputs])

    def program(x: Tensor) -> Tensor:
        found = inner(x.abs())
        return found["parts"][0] + found["pair"][1]["twice"]

    first, last = converters.convert(calque.record(program, torch.ones(2))).nodes[1:]
    names = ["sum", "parts.0", "pair.1.twice"]
    assert [name.partition(".")[2] for name, _ in first if "pair.0" not in name] == names
    assert [info.shape for info in last.call.inputs] == [(2,), (2,)]
    assert {info.name for info in last.call.inputs} <= {name for name, _ in first}


def test_what_only_a_profiler_sees_is_no_call(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("first"):
            y = x * 2
        return y + 1

    recording = calque.record(program, torch.ones(2))
    for level in ("function", "aten"):
        converters = Converters(level=level)  # pyright: ignore[reportArgumentType]
        converters.operator("aten.mul", "aten.add")(lambda call: call.op)
        assert converters.convert(recording).nodes == ["aten.mul.Tensor", "aten.add.Tensor"]
        assert converters.coverage(recording).is_complete
    pytest.importorskip("safetensors")
    save(recording, tmp_path)
    assert load(tmp_path)(np.ones(2, np.float32)).tolist() == [3, 3]


def test_guards_of_exported_programs_are_no_calls() -> None:
    exported = torch.export.export(nn.ReLU(), (torch.ones(2),)).module()
    converters = Converters(level="aten")
    converters.operator("aten.relu")(lambda call: call.op)
    assert converters.convert(exported).nodes == ["aten.relu.default"]  # pyright: ignore[reportArgumentType]


class _Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_a_torchscript_module_is_a_placeholder() -> None:
    model = nn.Sequential(torch.jit.script(_Scripted()), nn.ReLU())
    recording = calque.record(model, torch.ones(2, 3))
    converters = Converters()
    converters.function(F.relu)(lambda call: call.op)
    assert not converters.coverage(recording).is_complete
    scripted, relu = converters.convert(recording).nodes
    assert scripted.call.kind == "module"
    assert relu == "torch.nn.functional.relu"
