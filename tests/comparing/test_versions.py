"""Two versions of a program: lines that moved, were added or dropped, layers that changed."""

import copy
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import calque

SOURCE = """
import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        h = self.up(self.norm(x))
        h = F.gelu(h)
        return x + self.down(h)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.mean(1)
"""


@pytest.fixture
def version(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes a model of the source, in which some text is replaced, in a file of its own."""
    names: list[str] = []

    def make(old: str = "", new: str = "") -> Any:
        assert old in SOURCE
        name = f"version_{len(names)}"
        path = tmp_path / f"{name}.py"
        path.write_text(SOURCE.replace(old, new) if old else SOURCE)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        names.append(name)
        spec.loader.exec_module(module)
        torch.manual_seed(0)
        return module.Model()

    yield make
    for name in names:
        del sys.modules[name]


def test_a_version_with_a_comment_more_has_no_difference(version: Any) -> None:
    a, b = version(), version("        h = F.gelu", "        # as in the paper\n        h = F.gelu")
    found = calque.diff(a, b, torch.randn(2, 4))
    assert not found and found.compared == 16, found


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("        h = F.gelu(h)\n", "", "h = F.gelu(h)", "only a calls gelu"),
        ("F.gelu(h)", "F.relu(h)", "h = F.gelu(h)", "a calls gelu, and b relu"),
        ("        h = F", "        h = h * 2\n        h = F", "h = h * 2", "only b calls mul"),
        (
            "return x + self.down(h)",
            "return self.down(h)",
            "return x + self.down(h)",
            "only a calls",
        ),
        ("nn.LayerNorm(4)", "nn.LayerNorm(4, eps=1e-2)", "h = self.up(self.norm(x))", "0.01"),
    ],
)
def test_the_first_line_that_differs_is_named(
    version: Any, old: str, new: str, line: str, what: str
) -> None:
    found = calque.diff(version(), version(old, new), torch.randn(2, 4))
    first = found.first
    assert first is not None and first.origin is not None
    assert first.kind == "structure" and first.path.startswith("blocks.0") and what in first.what
    assert first.origin.text == line


def test_layers_of_other_names_are_found_by_what_they_call(version: Any) -> None:
    a, b = version(), version()
    for block in b.blocks:
        block.widen = block.up
        del block.up
        block.forward = lambda x, own=block: (
            x + own.down(nn.functional.gelu(own.widen(own.norm(x))))
        )
    found = calque.diff(a, b, torch.randn(2, 4))
    assert not found.of("values", "structure"), found


def test_a_graph_without_places_is_aligned_by_what_it_calls() -> None:
    class Model(nn.Module):
        def __init__(self, more: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last, self.more = nn.Linear(4, 4), nn.Linear(4, 4), more

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x) * 2
            x = x.sin() if self.more else x
            return self.last(x).relu()

    plain, more = Model(False), Model(True)
    x = torch.randn(2, 4)
    found = calque.diff(torch.fx.symbolic_trace(plain), torch.fx.symbolic_trace(more), x)
    assert found.first is not None and found.first.what == "only b calls sin here"
    with torch.no_grad():
        more.first.bias += 1
    found = calque.diff(torch.fx.symbolic_trace(plain), torch.fx.symbolic_trace(more), x)
    assert found.first is not None and found.first.kind == "values"
    assert found.first.a is not None and found.first.a.name == "first"


@pytest.mark.parametrize(
    ("a", "b", "what"),
    [
        (nn.Dropout(0.1), nn.Dropout(0.5), "p=0.1 against p=0.5"),
        (nn.Dropout(), nn.Dropout().eval(), "training=True against training=False"),
        (nn.LeakyReLU(0.1), nn.LeakyReLU(0.3), "negative_slope=0.1 against negative_slope=0.3"),
        (nn.ReLU(), nn.Tanh(), "a calls ReLU, and b Tanh"),
        (nn.ReLU(), nn.ReLU().eval(), None),
    ],
)
def test_without_arguments_layers_are_told_apart_by_how_they_are_set_up(
    a: nn.Module, b: nn.Module, what: str | None
) -> None:
    x = torch.ones(1, 4)
    graphs = [calque.trace(nn.Sequential(nn.Linear(4, 4), layer), x) for layer in (a, b)]
    found = calque.diff(*graphs)
    assert (found.first and found.first.what) == what


class Scales(nn.Module):
    def __init__(self, factor: float, in_place: bool) -> None:
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.ones(3)), factor
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        with torch.no_grad():
            self.weight.mul_(self.factor) if self.in_place else self.weight.copy_(
                self.weight * self.factor
            )
        return y


def test_what_is_left_of_a_parameter_is_compared() -> None:
    x = torch.ones(3)
    assert not calque.diff(Scales(2.0, True), Scales(2.0, False), x).of("values")
    found = calque.diff(Scales(2.0, True), Scales(3.0, False), x).of("values")
    assert any("the parameter weight after the call" in each.what for each in found)


def test_two_programs_that_raise_other_errors_differ() -> None:
    def singular(x: Tensor) -> Tensor:
        return torch.linalg.inv(x * 0)

    def indefinite(x: Tensor) -> Tensor:
        return torch.linalg.cholesky(x * 0)

    x = torch.ones(2, 2)
    found = calque.diff(calque.trace(singular, x), calque.trace(indefinite, x), x).of("error")
    assert "a raises _LinAlgError: linalg.inv" in found[0].what
    assert "and b _LinAlgError: linalg.cholesky" in found[0].what
    assert found[0].a is not None and found[0].a.name == "linalg_inv"


def test_an_error_comes_before_what_stands_behind_it() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2 if x.sum() > 0 else x
        return y + 1

    def other(x: Tensor) -> Tensor:
        y = x * 2 if x.sum() > 0 else x
        return y + 2

    graphs = [calque.record(each, torch.ones(3)).graph() for each in (program, other)]
    with pytest.raises(calque.TraceError):
        graphs[0](-torch.ones(3))
    traced = calque.trace(other, torch.ones(3))
    found = calque.diff(graphs[0], traced, -torch.ones(3))
    assert found.first is not None and found.first.kind == "error"
    assert found.first.a in graphs[0].graph.nodes


def test_a_program_that_asks_for_its_device_runs_on_both() -> None:
    def program(x: Tensor) -> Tensor:
        return x + torch.arange(3, device=x.device) + torch.zeros(3)

    assert not calque.diff(program, program, torch.ones(3), devices=("cpu", "jax"))


def test_an_error_says_which_program_was_recorded() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(RuntimeError) as raised:
        calque.diff(model, nn.Linear(2, 2).double(), torch.ones(1, 2))
    assert "recorded b" in raised.value.__notes__[-1]


def test_a_graph_of_dynamo_runs() -> None:
    graphs = []

    def backend(module: torch.fx.GraphModule, given: Any) -> Any:
        graphs.append((module, list(given)))
        return module

    torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend=backend)(torch.ones(1, 4))
    (graph, given), *_ = graphs
    found = calque.diff(graph, graph, *given)
    assert not found and found.compared == 2


@pytest.mark.parametrize("keep", [torch.ops.aten.detach.default, torch.ops.aten.alias.default])
def test_what_autograd_keeps_a_result_with_is_no_difference(keep: Any) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.ops.aten.relu.default, (x,))
    graph.call_function(keep, (y,))
    graph.output(y)
    made = torch.fx.GraphModule(nn.Module(), graph)
    assert not calque.diff(torch.fx.symbolic_trace(nn.ReLU()), made, torch.ones(2))


def test_a_graph_without_places_is_aligned_with_one_that_has_them() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(2, 4)
    made = make_fx(model)(x)
    found = calque.diff(calque.record(model, x).graph("aten"), made, x)
    assert not found and found.compared == 5, found
    with torch.no_grad():
        other = make_fx(copy.deepcopy(model))(x)
    dict(other.named_buffers(), **dict(other.named_parameters()))["_param_constant3"].data += 1
    first = calque.diff(calque.record(model, x).graph("aten"), other, x).first
    assert first is not None and first.b is not None and first.b.name == "addmm_1"


class Passing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x).relu()


ELSEWHERE = Passing()


class Makes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.Softmax(-1)(ELSEWHERE(x)) * nn.Tanh()(x)
        return self.down(x)


def _asks(x: Tensor) -> Any:
    torch._assert(x.dim() == 2, "two dimensions")
    rows, columns = x.shape[0], x.size(1)
    return x.view(rows * 2, columns // 2).to(x.dtype), torch.zeros(rows, device=x.device)


def _changes_a_list(x: Tensor) -> Tensor:
    parts = list(x.split([1, 2]))
    torch._foreach_add_(parts, 1.0)
    return torch.cat(parts)


@pytest.mark.parametrize("level", ["function", "module", "aten"])
@pytest.mark.parametrize("program", [Makes(), _asks])
def test_what_a_tracer_calls_by_other_names_is_no_difference(program: Any, level: Any) -> None:
    x = torch.randn(3, 4)
    recorded = calque.record(program, x).graph(level)
    for graph in (calque.trace(program, x), calque.symbolic_trace(program), program):
        found = calque.diff(graph, recorded, x)
        assert not found, found


@pytest.mark.parametrize("level", ["function", "aten"])
def test_what_is_written_to_a_list_is_one_with_it(level: Any) -> None:
    x = torch.randn(3, 4)
    recorded = calque.record(_changes_a_list, x).graph(level)
    found = calque.diff(calque.trace(_changes_a_list, x), recorded, x)
    assert not found, found


def test_what_only_a_guard_needs_is_no_difference() -> None:
    def program(x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and (x.abs().sum() == x.numel()):
            return x * 3
        return x * 2

    x = torch.randn(3, 4)
    recorded = calque.record(program, x)
    assert recorded.escapes
    found = calque.diff(recorded, lambda x: x * 2, x)
    assert not any("is_compiling" in str(each.origin and each.origin.text) for each in found), found


@pytest.mark.parametrize("level", ["function", "module", "aten"])
def test_hooks_of_a_layer_are_within_it(level: Any) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)
    model[0].register_forward_hook(lambda module, given, result: result * 2)
    model[0].register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    found = calque.diff(calque.trace(model, x), calque.record(model, x).graph(level), x)
    assert not found, found


def test_operators_of_a_function_transform_are_no_difference() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.vmap(lambda row: (row - row.mean()) / row.std())(x) * 2

    x = torch.randn(3, 4)
    found = calque.diff(program, program, x)
    assert not found, found
    assert not calque.diff(calque.record(program, x), program, x)
