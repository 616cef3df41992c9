"""A call in whose place its operators stand does what it did; what cannot be opened stays."""

import collections
import copy
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import calque
from calque.convert import Call, Calls, Converters, Placeholder
from calque.convert.decomposition import opened
from tests.laws.programs import PROGRAMS
from tests.tracing.record.traps import TRAPS

CORPUS: dict[str, Any] = dict(PROGRAMS)
CORPUS |= {
    f"trap {name}": (lambda trap=trap: (trap.make(), trap.draw))
    for name, trap in TRAPS.items()
    if trap.verdict == "right"
}
# These compute gradients inside, which graphs of operators cannot.
OF_GRADIENTS = {"trap autograd_functions", "trap gradients_inside", "trap hooks"}
OF_GRADIENTS |= {"trap threads_without_gradients"}
QUICK = ["writes_through_a_view", "trap writes_to_data", "trap set_items", "trap overlapping_views"]


def everything_opened(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    calls = {call.name for call in Calls(graph)}
    return opened(graph, lambda node: node.name in calls, lambda operators: True)


def outcome(graph: torch.fx.GraphModule, args: tuple[Any, ...]) -> list[Tensor]:
    """What it gives, and what it makes of its arguments."""
    graph, args = copy.deepcopy((graph, args))
    torch.manual_seed(0)
    given = tree_leaves((graph(*args), args))
    return [leaf.detach() for leaf in given if isinstance(leaf, Tensor)]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.conformance)
        for name in CORPUS
        if name not in OF_GRADIENTS
    ],
)
def test_operators_do_what_the_calls_did(name: str) -> None:
    program, draw = CORPUS[name]()
    args = draw()
    graph = calque.record(program, *copy.deepcopy(args)).graph()
    made = everything_opened(graph)
    for each in (args, draw()):
        torch.testing.assert_close(outcome(made, each), outcome(graph, each), equal_nan=True)


class Net(nn.Module):
    """(batch, 3, height, width) to (batch, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.conv(x)).mean((2, 3))
        return F.softmax(self.head(y), -1) * 2 + y.max(1).values[:, None]


def mixed(level: Any) -> Converters:
    converters = Converters(level)

    @converters.module(nn.Conv2d)
    def conv(call: Call) -> Any:
        return "conv", call.inputs[0].name, call.weights["weight"].shape

    @converters.function(F.softmax)
    def softmax(call: Call) -> Any:
        return "softmax", call.inputs[0].name, call.arguments["dim"]

    @converters.operator("aten.t", "aten.addmm", "aten.add", "aten.max")
    def other(call: Call) -> Any:
        return call.op, [info.name for info in call.inputs], list(call.weights)

    return converters


def nodes_of(level: Any) -> list[Any]:
    nodes = mixed(level).convert(calque.record(Net(), torch.randn(2, 3, 5, 5))).nodes
    return [node.call.op if isinstance(node, Placeholder) else node for node in nodes]


def test_modules_functions_and_operators_are_claimed_in_one_registry() -> None:
    assert nodes_of("function") == [
        ("conv", "x", (4, 3, 3, 3)),
        "torch.nn.functional.gelu",
        "Tensor.mean",
        ("aten.t.default", [], ["head.weight"]),
        ("aten.addmm.default", ["mean", "t"], ["head.bias"]),
        ("softmax", "addmm", -1),
        "Tensor.mul",
        ("aten.max.dim", ["mean"], []),
        "operator.getitem",
        ("aten.add.Tensor", ["mul", "getitem_2"], []),
    ]


def test_at_the_level_of_operators_modules_and_functions_are_claimed_whole() -> None:
    assert nodes_of("aten") == [
        ("conv", "x", (4, 3, 3, 3)),
        "aten.gelu.default",
        "aten.mean.dim",
        ("aten.t.default", [], ["head.weight"]),
        ("aten.addmm.default", ["mean", "t"], ["head.bias"]),
        ("softmax", "addmm", -1),
        "aten.mul.Tensor",
        ("aten.max.dim", ["mean"], []),
        "aten.unsqueeze.default",
        ("aten.add.Tensor", ["mul", "unsqueeze"], []),
    ]


def test_a_call_is_opened_only_if_all_of_its_operators_are_claimed() -> None:
    converters = Converters()
    converters.operator("aten.addmm")(lambda call: call.op)
    recording = calque.record(nn.Linear(3, 2), torch.ones(1, 3))
    assert list(converters.coverage(recording).missing) == ["torch.nn.functional.linear"]


def test_a_call_that_writes_has_operators_that_write() -> None:
    def program(x: Tensor) -> Tensor:
        y = torch.sigmoid(x)
        return F.relu(y, inplace=True) + y

    converters = Converters("aten")
    converters.function(torch.sigmoid)(lambda call: call.op)
    nodes = converters.convert(calque.record(program, torch.randn(3))).nodes
    assert nodes[0] == "torch.sigmoid"
    assert [node.call.op for node in nodes[1:]] == ["aten.relu_.default", "aten.add.Tensor"]


def test_a_constant_that_a_call_makes_is_a_weight() -> None:
    converters = Converters("aten")
    converters.function(torch.relu)(lambda call: call.op)
    recording = calque.record(lambda x: torch.relu(x) + torch.tensor([1.0, 2.0]), torch.ones(2))
    call = converters.convert(recording).placeholders[0].call
    assert call.op == "aten.lift_fresh_copy.default"
    (array,) = call.weights.values()
    assert array.tolist() == [1.0, 2.0]


def test_what_depends_on_values_stays_a_call_of_a_function() -> None:
    converters = Converters("aten")
    converters.function(torch.relu)(lambda call: call.op)
    recording = calque.record(lambda x: torch.relu(x).nonzero().sum(), torch.ones(2))
    missing = converters.coverage(recording).missing
    assert list(missing) == ["Tensor.nonzero", "aten.sum.default"]


class Mixed(nn.Module):
    """(n,) to tensors and numbers."""

    def forward(self, x: Tensor) -> Any:
        return x * 2, 3, {"sum": x.sum(), "factor": 1.5, "mode": "mean", "mask": None}


class Pair(NamedTuple):
    first: Tensor
    size: torch.Size


class Output(collections.OrderedDict[str, Any]):
    """As those of transformers."""


@dataclasses.dataclass
class Answer:
    pair: Pair
    note: str


class Structured(nn.Module):
    """Does much that no operator does."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = Mixed()

    def forward(self, x: Tensor) -> Any:
        if x.requires_grad or not torch.is_grad_enabled():
            raise ValueError
        with torch.no_grad(), torch.autocast("cpu", enabled=len(x) > 100):
            product, number, named = self.mixed(x.real)
        y = (product * number + named["sum"] * named["factor"]).real.T
        y = y.to(torch.result_type(y, 1))
        return Output(answer=Answer(Pair(y, y.shape), named["mode"]))


@pytest.mark.parametrize("level", ["function", "aten"])
@pytest.mark.filterwarnings("ignore:The use of `x.T`")
def test_what_runs_no_operator_needs_no_conversion(level: Any) -> None:
    converters = Converters(level)
    converters.operator("aten.mul", "aten.sum", "aten.add", "aten.permute", "aten.detach")(
        lambda call: call.op
    )
    recording = calque.record(Structured(), torch.ones(2))
    converted = converters.convert(recording)
    assert converters.coverage(recording).is_complete
    assert converted.placeholders == []
    assert "aten.detach.default" in converted.nodes  # no gradient flows through the block
    answer = converted.outputs["answer"]
    assert (type(answer), answer.note, answer.pair.size) == (Answer, "mean", torch.Size([2]))
    assert answer.pair.first.shape == (2,)


def test_blocks_stay_where_a_function_runs_in_another_mode() -> None:
    def program(x: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            return F.linear(x, x) + 1

    converters = Converters("aten")
    converters.function(F.linear)(lambda call: call.op)
    nodes = converters.convert(calque.record(program, torch.ones(2, 2))).nodes
    missing = [node.call.op for node in nodes if isinstance(node, Placeholder)]
    assert [name.rpartition(".")[2] for name in missing[::2]] == [
        "_enter_autocast",
        "_exit_autocast",
    ]


def test_a_question_that_is_claimed_is_a_call() -> None:
    converters = Converters()
    converters.function(torch.result_type, F.relu)(lambda call: call.op)
    recording = calque.record(lambda x: F.relu(x).to(torch.result_type(x, 1)), torch.ones(2))
    nodes = converters.convert(recording).nodes
    assert nodes[:2] == ["torch.nn.functional.relu", "torch.result_type"]


@pytest.mark.parametrize("level", ["function", "aten"])
def test_tensors_among_numbers_in_a_result_have_shapes(level: Any) -> None:
    converters = Converters(level)
    converters.module(Mixed)(lambda call: call.outputs)
    nodes = converters.convert(calque.record(Structured(), torch.ones(2))).nodes
    (infos,) = [node for node in nodes if isinstance(node, list)]
    assert [(info.name, info.shape) for info in infos] == [("mixed.0", (2,)), ("mixed.2.sum", ())]
    calls = [node.call for node in nodes if isinstance(node, Placeholder)]
    used = [info for call in calls if "mul" in call.op for info in call.inputs]
    assert used == infos
