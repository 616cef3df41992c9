"""`calque.diff` names the first node, and the line, at which two graphs of a program disagree."""

import copy
import dataclasses
import inspect
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calque
from tests.laws.programs import PROGRAMS

GRAPHS: dict[str, Callable[..., Any]] = {
    "symbolic": calque.trace,
    "recorded": lambda program, *args: calque.record(program, *args).graph(),
    "layers": lambda program, *args: calque.record(program, *args).graph("module"),
    "operators": lambda program, *args: calque.record(program, *args).graph("aten"),
    "lowered": lambda program, *args: calque.lower(calque.trace(program, *args)),
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            hidden = F.gelu(self.up(x))
            x = self.norm(x + self.down(hidden))
        return x.mean(0)


def line_of(text: str) -> int:
    lines, first = inspect.getsourcelines(Model.forward)
    return first + next(i for i, line in enumerate(lines) if text in line)


def inputs() -> Tensor:
    return torch.randn(3, 4)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("second", [*GRAPHS, "exported", "the module"])
@pytest.mark.parametrize("first", GRAPHS)
def test_graphs_of_one_program_agree(first: str, second: str) -> None:
    model, x = Model(), inputs()
    a = GRAPHS[first](copy.deepcopy(model), x)
    a.load_state_dict(model.state_dict(), strict=False)
    if second == "exported":
        b = torch.export.export(model, (x,))
    else:
        b = GRAPHS[second](copy.deepcopy(model), x) if second in GRAPHS else model
    if isinstance(b, nn.Module):
        b.load_state_dict(model.state_dict(), strict=False)
    found = calque.diff(a, b, inputs())
    assert not found, found
    assert found.compared > 8


@pytest.mark.sampled(18)
@pytest.mark.parametrize("second", GRAPHS)
@pytest.mark.parametrize("first", ["symbolic", "recorded"])
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "Counter"])
def test_graphs_of_any_program_agree(name: str, first: str, second: str) -> None:
    program, draw = PROGRAMS[name]()
    a = GRAPHS[first](copy.deepcopy(program), *draw())
    b = GRAPHS[second](copy.deepcopy(program), *draw())
    for module in (a, b) if isinstance(program, nn.Module) else ():
        module.load_state_dict(program.state_dict(), strict=False)
    found = calque.diff(a, b, *draw())
    assert not found, found


def writes_on_its_way(x: Tensor) -> Any:
    y, *_ = (e := x.exp()), e.t().sigmoid_(), e.diagonal().zero_()
    y.clamp_(max=0.9).add_(1)
    v = y.view(-1)[::2]
    v += 1
    return y, 1 - v, 2 / (v + 1), 2**v


class Layers(nn.Module):
    """Layers that give more than one tensor, or call nothing, on one line."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.cell = nn.LSTM(4, 3, batch_first=True), nn.LSTMCell(3, 3)
        self.last = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Any:
        memory = torch.empty(2)
        (y, (_, c)), (a, b) = self.rnn(x[None]), self.cell(x[:, 1:])
        return self.last(y), c, a, b, memory[:0]


@pytest.mark.parametrize("second", ["recorded", "layers", "operators", "symbolic"])
@pytest.mark.parametrize("first", ["recorded", "layers"])
@pytest.mark.parametrize("make", [lambda: writes_on_its_way, Layers])
def test_writes_and_layers_of_one_line_are_no_difference(
    make: Any, first: str, second: str
) -> None:
    torch.manual_seed(0)
    program = make()
    a, b = GRAPHS[first](program, inputs()), GRAPHS[second](program, inputs())
    found = calque.diff(a, b, inputs())
    assert not found, found


class Indexes(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[..., ::2], x[[1, 0]]


class Writes(nn.Module):
    def forward(self, x: Tensor, more: list[Tensor]) -> dict[str, Any]:
        y = torch.empty_like(x).t()
        y.fill_(2)
        return {"b": [y + x.t().view(3, 2) + more[0].t()], "a": x.view(6).sort()}


class Passes(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Identity(), nn.Linear(3, 3), nn.Identity(), nn.ReLU6())


@pytest.mark.parametrize("make", [Indexes, Writes, Passes])
def test_programs_agree_with_themselves_however_they_are_captured(make: Any) -> None:
    program, x = make(), torch.rand(2, 3)
    args = (x, [torch.rand(2, 3)]) if make is Writes else (x,)
    graphs = [program, torch.export.export(program, args)]
    graphs += [capture(program, *args) for capture in GRAPHS.values()]
    for first, second in itertools.combinations_with_replacement(graphs, 2):
        assert not calque.diff(first, second, *args)
        if program not in (first, second):
            assert not calque.diff(first, second)


def test_a_constant_of_another_tracer_and_a_tensor_without_data() -> None:
    def program(x: Tensor) -> Tensor:
        sizes = torch.ones(2, device="meta").view(-1).shape[0]
        return x + torch.tensor([1.0, 2.0, 3.0, 4.0]) * sizes

    def other(x: Tensor) -> Tensor:
        return x * torch.tensor([1.0, 1.0, 3.0, 4.0]) * 2

    assert not calque.diff(
        calque.record(program, inputs()), calque.trace(program, inputs()), inputs()
    )
    found = calque.diff(calque.trace(program, inputs()), calque.trace(other, inputs()), inputs())
    assert found.first is not None and found.first.origin is not None
    assert all("buffer" not in each.what for each in found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: (x * 2.5).int(), lambda x: x * 2.5),
        (lambda x: (x > 0).float().sum(), lambda x: (x > 0).sum()),
        (lambda x: x.float() * 2, lambda x: x.float() * 3),
        (lambda x: x.float() * 2, lambda x: x.float() + 3),
    ],
)
def test_a_cast_is_a_difference(one: Any, other: Any) -> None:
    assert calque.diff(calque.trace(one, inputs()), calque.trace(other, inputs()))
    assert calque.diff(calque.trace(one), calque.trace(other))


@pytest.mark.parametrize("second", [*GRAPHS, "exported"])
def test_another_weight_is_named_by_its_layer_and_line(second: str) -> None:
    model, x = Model().eval(), inputs()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.down.weight[0, 0] += 0.5
    a = calque.trace(model, x)
    b = torch.export.export(other, (x,)) if second == "exported" else GRAPHS[second](other, x)
    first = calque.diff(a, b, inputs()).first
    assert first is not None
    assert first.kind == "values"
    assert first.path == "down"
    assert first.origin is not None
    assert (first.origin.line, first.origin.call) == (line_of("self.down"), 0)
    assert first.max_abs is not None and first.max_abs > 1e-3
    assert f"test_diff.py:{first.origin.line}" in str(first)


def doubled(x: Tensor) -> Tensor:
    y = x.sin()
    return y * 2


def tripled(x: Tensor) -> Tensor:
    y = x.sin()
    return y * 3


def shifted(x: Tensor) -> Tensor:
    y = x.cos()
    return y * 2


def narrowed(x: Tensor) -> Tensor:
    y = x.sin()
    return (y * 2).half()


def cut(x: Tensor) -> Tensor:
    y = x.sin()
    return (y * 2)[:1]


@pytest.mark.parametrize(("other", "kind"), [(tripled, "structure"), (shifted, "structure")])
def test_other_calls_and_other_constants_differ_without_being_run(other: Any, kind: str) -> None:
    x = torch.randn(3)
    found = calque.diff(calque.trace(doubled, x), calque.trace(other, x))
    assert found.first is not None
    assert found.first.kind == kind
    assert found.compared == 0


@pytest.mark.parametrize(
    ("other", "kind"),
    [(tripled, "values"), (shifted, "values"), (narrowed, "dtype"), (cut, "shape")],
)
def test_results_differ_by_kind(other: Any, kind: str) -> None:
    x = torch.randn(3)
    found = calque.diff(doubled, other, x)
    assert found
    assert found.of(kind)  # type: ignore[arg-type]
    assert str(found).startswith("the first difference:")


def test_only_one_of_two_raises() -> None:
    def careful(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x

    recorded = calque.record(careful, torch.ones(2)).graph()
    plain = calque.trace(lambda x: x * 2, torch.ones(2))
    (error,) = calque.diff(plain, recorded, -torch.ones(2)).of("error")
    assert "only b raises" in error.what
    assert error.origin is not None
    assert error.origin.file == __file__
    with pytest.raises(calque.TraceError, match="gives .* now"):
        calque.diff(recorded, recorded, -torch.ones(2))


def test_nothing_is_left_of_a_comparison() -> None:
    model, x = Model(), inputs()
    graph = calque.trace(model, x)
    before = copy.deepcopy(model.state_dict())
    given = x.clone().requires_grad_()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert not calque.diff(graph, model, given)
    assert torch.equal(torch.rand(1), expected)
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    assert torch.equal(given, x)
    assert given.grad is None


def test_random_numbers_are_the_same_in_both() -> None:
    def dropped(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) + torch.rand(4)

    assert not calque.diff(dropped, calque.trace(dropped, torch.ones(4)), torch.ones(4))


def test_what_is_written_to_an_argument_is_compared() -> None:
    def writes(x: Tensor) -> Tensor:
        y = x + 1
        x.zero_()
        return y

    def leaves(x: Tensor) -> Tensor:
        return x + 1

    found = calque.diff(writes, leaves, torch.ones(2))
    assert [d.what for d in found.of("values") if "after the call" in d.what]


def test_later_writes_do_not_show_in_earlier_nodes() -> None:
    def late(x: Tensor) -> Tensor:
        y = x * 2
        z = y + 1
        y.zero_()
        return z + y

    graph = calque.trace(late, torch.ones(2))
    assert not calque.diff(graph, calque.lower(graph), torch.randn(2))


@pytest.mark.parametrize("level", ["function", "module", "aten"])
def test_devices_are_compared(level: Any) -> None:
    model, x = Model(), inputs()
    graph = calque.record(model, x).graph(level)
    assert not calque.diff(graph, graph, inputs(), devices=("cpu", "jax"), rtol=1e-4, atol=1e-5)


def test_the_node_is_named_that_a_device_computes_otherwise() -> None:
    def half(x: Tensor) -> Tensor:
        return x / 2 if x.device.type == "cpu" else x / 4

    nodes = torch.fx.Graph()
    doubled_node = nodes.call_method("mul", (nodes.placeholder("x"), 2))
    nodes.output(nodes.call_function(half, (doubled_node,)))
    graph = torch.fx.GraphModule({}, nodes)
    first = calque.diff(graph, graph, torch.ones(2), devices=("cpu", "jax")).first
    assert first is not None
    assert first.a is not None
    assert (first.a.name, first.kind, first.max_abs) == ("half", "values", 0.5)


def test_nan_agrees_with_nan_and_with_nothing_else() -> None:
    x = torch.tensor([1.0, float("nan")])
    assert not calque.diff(doubled, doubled, x)
    found = calque.diff(doubled, tripled, x).of("values")
    assert found[0].max_abs == pytest.approx(math.sin(1))


def test_what_is_no_program_and_what_is_not_given_arguments() -> None:
    with pytest.raises(TypeError, match="expects a graph, a module or a function"):
        calque.diff(3, doubled, torch.ones(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pass the arguments"):
        calque.diff(doubled, doubled)


CONTAINERS = [
    (lambda x: [x * 1, "a"], lambda x: (x * 1, "a"), "builtins.list against a builtins.tuple"),
    (lambda x: {"a": x * 1}, lambda x: {"b": x * 1}, r"\['a'\] against \['b'\]"),
    (lambda x: {"a": x * 1, "b": 1}, lambda x: {"b": 1, "a": x * 1}, "against"),
    (lambda x: (x * 1, torch.float32), lambda x: (x * 1, torch.float64), "float32 against"),
    (lambda x: (x * 1, ["name"]), lambda x: (x * 1, ["other"]), r"at \[1\]\[0\], 'name'"),
    (lambda x: (x * 1, None), lambda x: (x * 1, "a"), "None against"),
]


@pytest.mark.parametrize(("a", "b", "what"), CONTAINERS)
def test_results_are_compared_with_all_that_is_in_them(a: Any, b: Any, what: str) -> None:
    x = torch.ones(2)
    for program in (a, b):
        assert not calque.diff(program, calque.trace(program, x), x)
    (found,) = calque.diff(calque.trace(a, x), calque.trace(b, x), x).of("structure")
    assert re.search(what, found.what)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (lambda x, y: x - y, lambda x, y: y - x),
        (lambda x, y: (x.sin(), y), lambda x, y: (x.sin(), x)),
        (lambda x, y: (x.sin(), y.cos()), lambda x, y: (x.sin(), x.cos())),
        (lambda x, y: [x.sin(), y], lambda x, y: [y, x.sin()]),
    ],
)
def test_without_arguments_inputs_and_results_are_told_apart(a: Any, b: Any) -> None:
    x, y = torch.ones(2), torch.zeros(2)
    first, second = calque.trace(a, x, y), calque.trace(b, x, y)
    assert not calque.diff(first, calque.record(a, x, y).graph())
    assert calque.diff(first, second).first.kind == "structure"  # type: ignore[union-attr]


def test_without_arguments_parameters_are_told_apart() -> None:
    class Two(nn.Module):
        def __init__(self, swapped: bool) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))
            self.swapped = swapped

        def forward(self, x):
            return (x * self.b) - self.a if self.swapped else (x * self.a) - self.b

    x = torch.ones(2)
    graphs = [calque.trace(Two(swapped), x) for swapped in (False, True)]
    assert calque.diff(*graphs).first.kind == "structure"  # type: ignore[union-attr]
    assert not calque.diff(graphs[0], torch.export.export(Two(False), (x,)))


@pytest.mark.parametrize("devices", [("cpu",), "cpu"])
def test_devices_are_one_for_each_graph(devices: Any) -> None:
    with pytest.raises(ValueError, match="one device for each graph"):
        calque.diff(torch.relu, torch.relu, torch.ones(2), devices=devices)


def test_arguments_that_do_not_fit_are_named_with_the_program() -> None:
    def program(x: Tensor, scale: float = 2.0) -> Tensor:
        return x * scale

    x = torch.ones(2)
    graph = calque.trace(program, x)
    for call in (
        lambda: calque.diff(program, program, x, 1.0, x),
        lambda: calque.record(program, x, 1.0, x),
        lambda: calque.trace(program, x, 1.0, x),
    ):
        with pytest.raises(TypeError, match=r"program\(x.*scale.*\) cannot .* too many positional"):
            call()
    with pytest.raises(TypeError, match="these arguments: missing a required argument: 'x'"):
        calque.diff(graph, graph, scale=2.0)


def test_parts_of_values_of_unknown_length_are_no_calls() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        values, counts = torch.unique(x, return_counts=True)
        return values + 1, counts

    x = torch.tensor([1.0, 2.0, 2.0])
    assert not calque.diff(calque.record(program, x), calque.trace(program, x), x)


class _Settings(dict[str, Tensor]):
    pass


def test_a_dict_that_a_program_writes_to_is_the_one_that_it_was_given() -> None:
    def program(d: dict[str, Tensor]) -> dict[str, Tensor]:
        d["y"] = d["x"] * 2
        return d

    for given in ({"x": torch.ones(2)}, _Settings(x=torch.ones(2))):
        graphs = [
            calque.trace(program, copy.copy(given)),
            calque.record(program, copy.copy(given)).graph(),
        ]
        assert not calque.diff(*graphs, copy.copy(given))


def test_a_recorded_branch_is_compared_with_a_graph_that_chooses() -> None:
    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x * 2
        return x - 1

    def other(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x * 3
        return x - 1

    x = torch.ones(2)
    recording = calque.record(program, x)
    assert not calque.diff(recording, calque.trace(program, x), x)
    found = calque.diff(recording, calque.trace(other, x), x)
    assert found.first is not None and found.first.kind == "values"


def tags_inner_tensors(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.mask = x > 0  # type: ignore[attr-defined]
    return torch.where(y.mask, y, -y)  # type: ignore[attr-defined]


def copies_layers(x: torch.Tensor) -> torch.Tensor:
    for layer in [copy.deepcopy(LAYER) for _ in range(2)]:
        x = layer(x).relu()
    return x


LAYER = torch.nn.Linear(4, 4)


def passes_on_what_it_reads(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(x.tolist()) * sum(x[0].tolist())


def uses_what_was_passed_through(x: torch.Tensor) -> torch.Tensor:
    same = x.to(memory_format=torch.channels_last)
    first, second = torch.broadcast_tensors(x, x[:1])
    kept = torch.nn.functional.dropout(x, 0.1, False)
    return x[:, ::2] + same.sum() + first[:, 1:3] * second[:, :2] + kept.mean()


def logarithms(x: torch.Tensor) -> Any:
    return torch.distributions.Categorical(logits=x).log_prob(torch.zeros(len(x))), x


@pytest.mark.parametrize(
    ("program", "x"),
    [
        (tags_inner_tensors, torch.randn(3)),
        (copies_layers, torch.randn(2, 4)),
        (passes_on_what_it_reads, torch.randn(2, 3)),
        (uses_what_was_passed_through, torch.randn(2, 4, 3, 3)),
        (logarithms, torch.randn(3, 4)),
    ],
)
def test_what_only_a_trace_has_in_its_graph_is_no_difference(program: Any, x: torch.Tensor) -> None:
    traced = calque.trace(program, x, tracer="auto")
    recording = calque.record(program, x)
    assert not (found := calque.diff(traced, recording, x)), found
    assert not (found := calque.diff(recording, traced, x)), found


def test_what_a_trace_sets_or_reads_is_compared_where_it_leaves() -> None:
    def tags(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.tag = 1  # type: ignore[attr-defined]
        return y

    def tags_not(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x = torch.ones(2)
    found = calque.diff(calque.trace(tags, x), calque.trace(tags_not, x), x)
    assert [each.kind for each in found] == ["structure"], found

    def other(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor((x + 1).tolist())

    def one(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(x.tolist())

    assert calque.diff(calque.trace(one, x), calque.record(other, x), x)


def test_a_constant_that_a_recording_copies_is_no_difference() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.cat([x, torch.Tensor([1e10]).expand(x[:1].shape)]) * 2

    x = torch.randn(2)
    assert not calque.diff(calque.trace(program, x), calque.record(program, x), x)


class Written(nn.Module):
    """Writes what has a gradient to a buffer, as caches of keys and values do."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.weight_norm(nn.Linear(2, 2))
        self.register_buffer("cache", torch.zeros(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        self.cache[:1] = self.layer(x)
        return self.cache.sum(0)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`", "ignore:The .grad attribute")
def test_modules_with_tensors_that_pytorch_does_not_copy() -> None:
    module, x = Written(), torch.randn(1, 2)
    assert not calque.diff(module, module, x)
    module(x)
    before = module.cache.clone()
    assert not calque.diff(module, module, torch.randn(1, 2))
    assert torch.equal(module.cache, before)


@dataclasses.dataclass
class Batch:
    x: Tensor
    meta: dict[str, Any]


@dataclasses.dataclass
class Scores:
    logits: Tensor
    loss: Tensor | None = None


def test_fields_of_arguments_and_results_are_no_calls() -> None:
    def program(batch: Batch) -> Scores:
        y = batch.x * batch.meta["scale"]
        return Scores(logits=y.exp() + batch.meta["shift"])

    def other(batch: Batch) -> Scores:
        y = batch.x * batch.meta["scale"]
        return Scores(logits=y.exp() - batch.meta["shift"])

    batch = Batch(torch.randn(2), {"scale": 2.0, "shift": torch.randn(2)})
    traced, recorded = calque.trace(program, batch), calque.record(program, batch).graph()
    assert not calque.diff(traced, recorded, batch)
    assert not calque.diff(traced, recorded)
    first = calque.diff(traced, calque.record(other, batch), batch).first
    assert first is not None and first.kind == "structure"
    assert first.origin is not None and "logits=y.exp()" in first.origin.text
