"""What `calque.show` takes, and what a view says of nodes."""

import io
import json
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import calque
from calque.coverage import unpacked
from calque.view import View, ViewEdge, ViewGraph, ViewGroup, ViewNode, overlays, reader
from calque.view.served import served_by
from tests.view.models import GPT, Block, Detector, ResNet


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(self.norm(x))
        return F.gelu(y) + 1


@pytest.fixture(scope="module")
def recording() -> calque.Recording:
    return calque.record(Small().eval(), torch.randn(3, 8))


def test_a_node_knows_its_shapes_arguments_weights_and_line(recording: calque.Recording) -> None:
    node = calque.show(recording).graph.node["linear"]
    assert [str(look) for look in node.outputs] == ["float32[3, 4]"]
    assert dict(node.parameters)["linear.weight"].shape == (4, 8)
    assert node.source is not None
    assert node.source.text == "y = self.linear(self.norm(x))"
    assert Path(node.source.file).name == "test_view.py"
    assert (node.family, node.served, node.group) == ("matmul", "rule", "linear")


def test_the_arguments_of_an_operator_have_their_names(recording: calque.Recording) -> None:
    node = calque.show(recording, level="aten").graph.node["addmm"]
    assert [name for name, _ in node.arguments] == ["self", "mat1", "mat2"]


def test_a_value_that_is_read_is_an_escape() -> None:
    def scaled(x):
        scale = x.abs().max().item()
        return x / scale if scale > 1 else x

    view = calque.show(scaled, torch.tensor([1.0, -4.0]))
    assert view.graph.node["item"].served == "escape"
    kinds = [node.served for node in view.nodes if node.kind == "check"]
    assert kinds == ["escape"]


def test_what_serves_an_operator() -> None:
    def several(x):
        return torch.special.entr(x), F.pdist(x), torch.logcumsumexp(x, 0), x.relu()

    served = {n.label: n.served for n in calque.show(several, torch.rand(3, 2)).nodes}
    assert served["relu"] == "rule"
    assert set(served.values()) <= {"", "rule", "decomposition", "fallback"}


def test_operators_that_the_suite_has_seen_on_the_cpu_are_fallbacks() -> None:
    file = json.loads(files("calque").joinpath("coverage.json").read_text())
    names = {name for row in unpacked(file).values() for name in row["cpu"]}
    assert names
    for name in names:
        packet, _, overload = name.partition("::")[2].partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        assert served_by(operator) == "fallback", name


def test_probing_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()).train()
    graph = calque.trace(model, torch.ones(2, 4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    shapes = [node.meta["val"].shape for node in graph.graph.nodes if "val" in node.meta]
    state = torch.get_rng_state()
    calque.show(graph).html()
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert shapes == [node.meta["val"].shape for node in graph.graph.nodes if "val" in node.meta]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "args", "attention"),
    [
        (lambda: ResNet((1, 1, 1, 1), 8), (torch.randn(1, 3, 32, 32),), 0),
        (lambda: GPT(2), (torch.arange(6)[None],), 2 * 2 * 2 * 16 * 6 * 6),
        (lambda: Detector(), (torch.randn(1, 3, 32, 32),), 0),
    ],
    ids=["resnet", "gpt", "detector"],
)
def test_flops_are_those_that_pytorch_counts(make, args, attention: int) -> None:
    model = make().eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*args)
    programs = (
        calque.record(model, *args),
        calque.trace(model, *args),
        torch.export.export(model, args),
    )
    # PyTorch 2.13 has no formula for attention on CPUs.
    counted = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu in flop_registry
    expected = counter.get_total_flops() + (0 if counted else attention)
    for program in programs:
        assert sum(overlays.flops(program).values()) == expected


def test_bytes_are_those_of_what_a_node_takes_and_gives(recording: calque.Recording) -> None:
    found = overlays.memory(recording)
    assert found["linear"] == 4 * (3 * 8 + 4 * 8 + 4 + 3 * 4)
    layers = overlays.memory(recording.graph("module"))
    assert layers["linear"] == found["linear"]


def test_errors_of_the_device_are_small_and_found() -> None:
    block = Block().eval()
    x = torch.randn(1, 4, 16)
    found = overlays.max_errors(calque.record(block, x), x)
    assert "scaled_dot_product_attention" in found
    assert all(0 <= error < 1e-5 for error in found.values())


def test_an_error_of_the_device_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3)
    graph = torch.fx.symbolic_trace(lambda x: torch.sub(x, 2 * x))

    def wrong(a, b):
        return a - b if a.device.type == "cpu" else a - b + 0.5

    next(n for n in graph.graph.nodes if n.target is torch.sub).target = wrong
    assert overlays.max_errors(graph, x)["sub"] == 0.5


def test_times_are_of_every_call(recording: calque.Recording) -> None:
    found = overlays.times(recording, torch.randn(3, 8))
    calls = [node.name for node in recording.graph().graph.nodes if node.op.startswith("call")]
    assert list(found) == calls
    assert all(seconds > 0 for seconds in found.values())


@pytest.mark.parametrize("of", ["recording", "traced", "exported"])
def test_levels_lead_down_to_stablehlo(recording: calque.Recording, of: str) -> None:
    x = torch.randn(3, 8)
    graph = {
        "recording": lambda: recording,
        "traced": lambda: calque.trace(Small().eval(), x),
        "exported": lambda: torch.export.export(Small().eval(), (x,)),
    }[of]()
    nodes = calque.show(graph, levels=True).graph.node
    assert "aten.addmm.default" in nodes["linear"].levels["aten"]
    assert any("dot_general" in line for line in nodes["linear"].levels["stablehlo"])
    assert any("erf" in line for line in nodes["gelu"].levels["stablehlo"])
    assert not any("erf" in line for line in nodes["linear"].levels["stablehlo"])


def test_a_node_without_operators_says_why() -> None:
    def scaled(x):
        return x.relu() / x.abs().max().item()

    nodes = calque.show(calque.record(scaled, torch.tensor([1.0, -4.0])), levels=True).graph.node
    assert nodes["relu"].levels["aten"] == ("aten.relu.default",)
    assert list(nodes["item"].levels) == ["not known"]
    assert "reads a number, which is not known" in nodes["item"].levels["not known"][0]


def test_the_nodes_of_branches_have_levels() -> None:
    graph = calque.trace(lambda x: x * 2 if x.sum() > 0 else -x, torch.ones(3))
    nodes = calque.show(graph, levels=True).graph.node
    assert nodes["false_graph_0/neg"].levels["aten"] == ("aten.neg.default",)


def test_without_shapes_there_are_no_levels() -> None:
    graph = torch.fx.symbolic_trace(Small())
    for look in (overlays.flops, lambda g: calque.show(g, levels=True)):
        with pytest.raises(ValueError, match="the shapes in the graph are not known"):
            look(graph)


def test_overlays_are_by_node_or_by_name(recording: calque.Recording) -> None:
    graph = recording.graph()
    node = next(n for n in graph.graph.nodes if n.name == "gelu")
    view = calque.show(graph, overlays={node: 2.0, "linear": 3})
    assert view.overlays == {"overlay": {"gelu": 2.0, "linear": 3.0}}
    with pytest.raises(ValueError, match="number for 'nowhere', which is not a node"):
        calque.show(graph, overlays={"time": {"nowhere": 1}})


def test_an_overlay_may_have_numbers_that_are_not_finite(recording: calque.Recording) -> None:
    values = {"linear": float("nan"), "gelu": float("inf"), "add": 1.0}
    page = calque.show(recording, overlays={"error": values}).html()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert data["overlays"]["error"] == {"linear": "nan", "gelu": "inf", "add": 1.0}


def test_what_is_no_graph_is_an_error() -> None:
    with pytest.raises(TypeError, match="with example arguments"):
        calque.show(nn.Linear(3, 2))
    with pytest.raises(TypeError, match="already a graph"):
        calque.show(calque.trace(nn.Linear(3, 2), torch.ones(1, 3)), torch.ones(1, 3))
    with pytest.raises(ValueError, match="at least 1"):
        calque.show(nn.Linear(3, 2), torch.ones(1, 3), depth=0)


def test_levels_of_what_has_no_operators_is_an_error() -> None:
    with pytest.raises(TypeError, match="has no operators"):
        calque.show(ViewGraph("", "", (), ()), levels=True)


def test_a_view_graph_is_whole() -> None:
    node = ViewNode("a", "op", "label")
    with pytest.raises(ValueError, match="the same id"):
        ViewGraph("", "", (node, node), ())
    with pytest.raises(ValueError, match="no 'b'"):
        ViewGraph("", "", (node,), (ViewEdge("a", "b"),))
    with pytest.raises(ValueError, match="no 'g'"):
        ViewGraph("", "", (node,), (), (ViewGroup("h", "g", "h", "h"),))


def test_another_kind_of_graph_has_a_reader_of_its_own() -> None:
    class Chain(list):
        pass

    def read(chain: Chain) -> ViewGraph:
        nodes = tuple(ViewNode(name, name, name) for name in chain)
        return ViewGraph("chain", "a chain", nodes, tuple(map(ViewEdge, chain, chain[1:])))

    reader(Chain, read)
    assert [(e.source, e.target) for e in calque.show(Chain("abc")).edges] == [
        ("a", "b"),
        ("b", "c"),
    ]


def test_files_are_what_their_names_end_in(recording: calque.Recording, tmp_path: Path) -> None:
    view = calque.show(recording, depth=1)
    assert view.save(tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert view.save(str(tmp_path / "a.dot")).read_text() == view.dot()
    assert view.save(tmp_path / "a.mmd").read_text() == view.mermaid()
    assert json.loads(view.save(tmp_path / "a.json").read_text())["graphs"]
    assert view.save(tmp_path / "a.txt").read_text() == str(view)
    with pytest.raises(ValueError, match=r"not as '\.docx'"):
        view.save(tmp_path / "a.docx")


def test_a_picture_without_graphviz_is_an_error(
    recording: calque.Recording, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="Graphviz"):
        calque.show(recording).save(tmp_path / "a.svg")


def test_rich_has_the_same_tree_in_colours(recording: calque.Recording) -> None:
    console = pytest.importorskip("rich.console")
    view = calque.show(recording)
    target = io.StringIO()
    console.Console(width=200, file=target).print(view)
    text = target.getvalue()
    plain = [line.lstrip("│├└─ ").split("  ")[0] for line in view.text().splitlines()[1:]]
    assert all(name in text for name in plain)


def test_without_rich_the_tree_is_plain(
    recording: calque.Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich.text", None)
    view = calque.show(recording)
    assert "linear: Linear" in str(view)
    with pytest.raises(ImportError, match=r"calque\[view\]"):
        view.__rich__()


def test_depth_is_how_many_levels_are_shown() -> None:
    view = calque.show(GPT(2).eval(), torch.arange(4)[None])
    assert isinstance(view, View)
    top = view.text(depth=1).splitlines()[1:]
    assert all(line.startswith(("├─ ", "└─ ")) for line in top)
    assert "h …" in view.text(depth=1)
    assert len(view.text(depth=1)) < len(view.text(depth=2)) < len(view.text(depth=3))
    assert view.dot(depth=1).count("subgraph") == 0
    assert len(view.dot(depth=1)) < len(view.dot(depth=2)) < len(view.dot())


class Dilated(nn.Module):
    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, padding=dilation, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.gelu(self.conv(x))


@pytest.mark.parametrize("level", ["module", "function", "aten"])
def test_blocks_that_are_set_up_differently_are_not_drawn_as_one(level: str) -> None:
    x = torch.randn(1, 4, 32)
    for dilations, runs in (((1, 1, 1), 1), ((1, 2, 4), 0)):
        model = nn.Sequential(*map(Dilated, dilations))
        view = calque.show(calque.record(model, x), level=level)  # pyright: ignore[reportArgumentType]
        assert view.text().count("Dilated ×3") == runs


class Untold(nn.Linear):
    def extra_repr(self) -> str:
        raise AttributeError("set up later")


def test_a_layer_says_how_it_is_set_up() -> None:
    model = nn.Sequential(nn.Dropout(0.3), Untold(2, 2)).eval()
    view = calque.show(calque.record(model, torch.ones(1, 2)).graph(leaf=lambda module, _: True))
    told = [dict(node.arguments).get("settings") for node in view.nodes if node.kind == "module"]
    assert told == ["p=0.3, inplace=False", None]


def test_a_view_can_be_shown_again(recording: calque.Recording) -> None:
    view = calque.show(recording)
    assert calque.show(view, depth=1).text() == view.text(depth=1)


@pytest.mark.parametrize("depth", [0, -1, 1.5, "2"])
def test_a_depth_is_a_whole_number(recording: calque.Recording, depth: object) -> None:
    with pytest.raises(ValueError, match="depth must be an integer"):
        calque.show(recording, depth=depth)  # pyright: ignore[reportArgumentType]


def test_only_recordings_have_levels_to_choose_from() -> None:
    with pytest.raises(TypeError, match="has only one level"):
        calque.show(calque.trace(nn.ReLU(), torch.ones(1)), level="aten")


def test_parts_of_dicts_have_levels() -> None:
    def program(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return batch["x"].sin()

    view = calque.show(calque.record(program, {"x": torch.ones(2)}), levels=True)
    assert not [node.id for node in view.nodes if "not known" in node.levels]


def test_memory_as_it_is_has_no_error_on_the_device() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, 1, out=torch.empty(3))

    graph = calque.record(program, torch.ones(3)).graph()
    assert "empty" not in overlays.max_errors(graph, torch.ones(3))
