"""A view has the nodes and edges of its graph, and every format has those of the view."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import calque
from calque import federated as fed
from calque.federated.building_blocks import BuildingBlock
from calque.federated.building_blocks import blocks as bb
from calque.view import View, ViewEdge, ViewGraph, ViewGroup, ViewNode
from calque.view.collapsing import collapsed
from calque.view.readers.blocks import read
from tests.view.models import Detector, ResNet

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")


def edges_of(graph: torch.fx.Graph) -> list[tuple[str, str]]:
    return sorted((n.name, node.name) for node in graph.nodes for n in node.all_input_nodes)


def assert_shows(view: View, graph: torch.fx.Graph) -> None:
    assert [node.id for node in view.nodes] == [node.name for node in graph.nodes]
    assert sorted((e.source, e.target) for e in view.edges) == edges_of(graph)


def small() -> tuple[torch.nn.Module, torch.Tensor]:
    return ResNet((1, 1, 1, 2), 4).eval(), torch.randn(1, 3, 32, 32)


def test_a_traced_graph() -> None:
    model, x = small()
    graph = calque.trace(model, x)
    assert_shows(calque.show(graph), graph.graph)


def test_a_graph_of_torch_fx() -> None:
    graph = torch.fx.symbolic_trace(small()[0])
    assert_shows(calque.show(graph), graph.graph)
    assert_shows(calque.show(graph.graph), graph.graph)


@pytest.mark.parametrize("level", ["module", "function", "aten"])
def test_a_recording(level: str) -> None:
    model, x = small()
    recording = calque.record(model, x)
    assert_shows(calque.show(recording, level=level), recording.graph(level).graph)


def test_a_module_with_a_call() -> None:
    model, x = small()
    assert_shows(calque.show(model, x), calque.record(model, x).graph().graph)


def test_an_exported_program() -> None:
    model, x = small()
    program = torch.export.export(model, (x,))
    assert_shows(calque.show(program), program.graph)


def test_a_graph_of_dynamo() -> None:
    model, x = small()
    seen = []

    def backend(module: torch.fx.GraphModule, args: list[torch.Tensor]) -> object:
        seen.append((calque.show(module), module.graph))
        return module.forward

    torch.compile(model, backend=backend)(x)
    assert seen
    for view, graph in seen:
        assert_shows(view, graph)
        assert {group.path for group in view.groups} >= {"layer1.0.conv1", "fc"}
        assert "fc.weight" in {node.label for node in view.nodes}


def test_the_branches_of_a_graph_are_in_groups_of_their_own() -> None:
    graph = calque.trace(lambda x: x * 2 if x.sum() > 0 else -x, torch.ones(3))
    view = calque.show(graph)
    inner = [graph.true_graph_0.graph, graph.false_graph_0.graph]
    assert len(view.nodes) == sum(len(g.nodes) for g in (graph.graph, *inner))
    assert len(view.edges) == sum(len(edges_of(g)) for g in (graph.graph, *inner))
    assert {group.name for group in view.groups} == {"true_graph_0", "false_graph_0"}


def blocks_of(block: BuildingBlock) -> list[BuildingBlock]:
    return [block, *(inner for part in block.children() for inner in blocks_of(part))]


def test_a_federated_computation() -> None:
    @fed.computation("{float32}@CLIENTS", "float32@SERVER")
    def share_above(readings, limit):
        over = readings > fed.federated_broadcast(limit)
        return fed.federated_mean(over * 1.0)

    view = calque.show(share_above)
    blocks = blocks_of(share_above.building_block)
    assert len(view.nodes) == len(blocks)
    parts = [edge for edge in view.edges if edge.kind == "data"]
    assert len(parts) == sum(len(block.children()) for block in blocks)
    uses = {view.graph.node[e.target].label for e in view.edges if e.kind == "binding"}
    assert uses == {node.label for node in view.nodes if node.label.startswith("call_")}


@pytest.mark.parametrize("local", ["call_2", "call_3", "block_1", "literal_2", "reference_3"])
def test_names_of_values_may_look_like_those_that_a_view_makes(local: str) -> None:
    one = bb.Literal(np.float32(1))
    named = bb.Reference(local, one.type)
    block = bb.Block(((local, one), ("call_9", named)), bb.Struct(((None, named), (None, named))))
    view = read(block)
    assert len({node.id for node in view.nodes}) == len(blocks_of(block))
    bound = next(node.id for node in view.nodes if node.op == "Literal")
    uses = [edge for edge in view.edges if edge.kind == "binding"]
    assert [edge.source for edge in uses] == [bound] * 3


def test_a_recording_without_a_graph_shows_its_calls() -> None:
    class Counts(torch.nn.Module):
        count = 0

        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            self.count += 1
            return self.linear(x) * self.count

    recording = calque.record(Counts(), torch.ones(2, 4))
    assert recording.problems
    view = calque.show(recording)
    assert [node.label for node in view.nodes] == ["x", "linear", "mul", "output"]
    assert [(e.source, e.target) for e in view.edges] == [
        ("x", "linear"),
        ("linear", "mul"),
        ("mul", "output"),
    ]
    assert [group.path for group in view.groups] == ["linear"]


NASTY = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    'quo"te',
    "apo'strophe",
    "new\nline",
    "back`tick",
    "]]>",
    "<!--",
    "a\u2028b\u2029c",
    "\\N \\l \\",
    "&lt;&amp;&#60;",
    "\x1b[31mred\x00",
    "%%{init: {}}%%",
    "end",
    "${x}",
    "@DATA@",
    "𝔘\u202enicode",
    "",
]
names = st.one_of(st.sampled_from(NASTY), st.text(max_size=12))


@st.composite
def view_graphs(draw: st.DrawFn) -> ViewGraph:
    groups: list[ViewGroup] = []
    for index in range(draw(st.integers(0, 4))):
        parent = draw(st.sampled_from(["", *(group.id for group in groups)]))
        name = draw(names)
        groups.append(ViewGroup(f"{name}/{index}", parent, name, name, draw(names)))
    count = draw(st.integers(1, 8))
    ids = [f"{draw(names)}#{index}" for index in range(count)]
    homes = st.sampled_from(["", *(group.id for group in groups)])
    nodes = [ViewNode(id, draw(names), draw(names), group=draw(homes)) for id in ids]
    pairs = [(a, b) for i, a in enumerate(ids) for b in ids[i + 1 :]]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    edges = tuple(ViewEdge(a, b) for a, b in chosen)
    return ViewGraph(draw(names), "made up", tuple(nodes), edges, tuple(groups))


@given(view_graphs())
def test_dot_has_the_nodes_and_edges(graph: ViewGraph) -> None:
    index = {node.id: i for i, node in enumerate(graph.nodes)}
    text = View(graph).dot()
    found = re.findall(r"^  n(\d+) -> n(\d+);$", text, re.MULTILINE)
    assert [(int(a), int(b)) for a, b in found] == [
        (index[e.source], index[e.target]) for e in graph.edges
    ]
    assert len(re.findall(r"^ +n\d+ \[", text, re.MULTILINE)) == len(graph.nodes)
    assert len(re.findall(r"^ +subgraph cluster_\d+ {", text, re.MULTILINE)) <= len(graph.groups)


@needs_dot
@settings(max_examples=8, deadline=None)
@given(view_graphs())
def test_graphviz_reads_back_what_was_written(graph: ViewGraph) -> None:
    made = subprocess.run(
        ["dot", "-Tjson"], input=View(graph).dot().encode(), capture_output=True, check=True
    )
    read = json.loads(made.stdout, strict=False)
    nodes = {o["_gvid"]: o for o in read.get("objects", []) if not o["name"].startswith("cluster")}
    assert sorted(o["name"] for o in nodes.values()) == sorted(
        f"n{i}" for i in range(len(graph.nodes))
    )
    index = {node.id: f"n{i}" for i, node in enumerate(graph.nodes)}
    found = [(nodes[e["tail"]]["name"], nodes[e["head"]]["name"]) for e in read.get("edges", [])]
    assert sorted(found) == sorted((index[e.source], index[e.target]) for e in graph.edges)


@given(view_graphs())
def test_mermaid_has_the_nodes_and_edges_and_no_other_line(graph: ViewGraph) -> None:
    index = {node.id: i for i, node in enumerate(graph.nodes)}
    lines = View(graph).mermaid().splitlines()
    assert lines[0] == "flowchart TB"
    shapes = (
        r' +n\d+\["[^"\[\]<>`]*"\]:::\w+',
        r' +subgraph g\d+\["[^"\[\]<>`]*"\]',
        r" +end",
        r"  n\d+ --> n\d+",
        r"  classDef \w+ fill:#\w+,stroke:#\w+",
    )
    for line in lines[1:]:
        assert any(re.fullmatch(shape, line) for shape in shapes), line
    found = re.findall(r"^  n(\d+) --> n(\d+)$", "\n".join(lines), re.MULTILINE)
    assert [(int(a), int(b)) for a, b in found] == [
        (index[e.source], index[e.target]) for e in graph.edges
    ]


@given(view_graphs())
def test_model_explorer_has_the_nodes_and_edges(graph: ViewGraph) -> None:
    (read,) = json.loads(View(graph).model_explorer())["graphs"]
    assert [node["id"] for node in read["nodes"]] == [node.id for node in graph.nodes]
    assert [node["label"] for node in read["nodes"]] == [node.label for node in graph.nodes]
    found = [(e["sourceNodeId"], n["id"]) for n in read["nodes"] for e in n["incomingEdges"]]
    assert sorted(found) == sorted((e.source, e.target) for e in graph.edges)


class Page(HTMLParser):
    """The elements of a page, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data


EMPTY = Page(View(ViewGraph("", "", (), ())).html())


@given(view_graphs())
def test_no_name_changes_the_page(graph: ViewGraph) -> None:
    page = Page(View(graph).html())
    assert page.elements == EMPTY.elements
    assert page.scripts[1:] == EMPTY.scripts[1:]
    assert not set(page.scripts[0]) & set("<>&\u2028\u2029")
    data = json.loads(page.scripts[0])
    assert [node["label"] for node in data["nodes"]] == [node.label for node in graph.nodes]


@given(view_graphs(), st.integers(1, 4))
def test_a_line_of_text_is_a_node_or_a_group(graph: ViewGraph, depth: int) -> None:
    text = View(graph).text()
    full = [group.id for group in graph.groups if graph.children.get(group.id)]
    assert len(text.split("\n")) == 1 + len(graph.nodes) + len(full)
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(View(graph).text(depth=depth).split("\n")) <= len(text.split("\n"))


@given(view_graphs(), st.integers(1, 4))
def test_collapsing_keeps_what_is_reachable(graph: ViewGraph, depth: int) -> None:
    small = collapsed(graph, depth)
    assert all(len(small.ancestry(node.group)) < depth for node in small.nodes)
    inner = sum(len(graph.ancestry(node.group)) < depth for node in graph.nodes)
    assert sum(node.kind != "group" for node in small.nodes) == inner
    assert len(small.edges) <= len(graph.edges)
    assert collapsed(graph, 10) == graph


class Hostile(torch.nn.Module):
    def __init__(self, wanted: list[str]) -> None:
        super().__init__()
        for index, name in enumerate(wanted):
            layer = torch.nn.Linear(2, 2, bias=False)
            layer.register_parameter(f"{name} weight", torch.nn.Parameter(torch.ones(2)))
            self.add_module(f"{name}{index}".replace(".", ""), layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            x = layer(x) * next(p for n, p in layer.named_parameters() if n.endswith(" weight"))
        return x


# torch.fx generates code with the names of parameters, which is impossible for these.
NO_CODE = {'quo"te', "new\nline", "\\N \\l \\", "\x1b[31mred\x00"}
CODE = [name for name in NASTY if name and name not in NO_CODE]


@pytest.fixture(scope="module", params=["all", "traced", "recorded", "exported"])
def hostile(request: pytest.FixtureRequest) -> View:
    x = torch.ones(1, 2)
    if request.param == "all":
        return calque.show(Hostile(list(filter(None, NASTY))), x)
    if request.param == "traced":
        return calque.show(calque.trace(Hostile(CODE), x))
    if request.param == "recorded":
        return calque.show(calque.record(Hostile(CODE), x))
    return calque.show(torch.export.export(Hostile(list(filter(None, NASTY))), (x,)))


def test_names_of_a_model_break_no_format(hostile: View) -> None:
    assert Page(hostile.html()).elements == EMPTY.elements
    assert len(re.findall("^  n\\d+ -> n\\d+;$", hostile.dot(), re.MULTILINE)) == len(hostile.edges)
    json.loads(hostile.model_explorer())
    assert all(line.isprintable() for line in str(hostile).split("\n"))
    assert "<script>" not in hostile.html().split('id="data">')[1].split("</script>")[0]


@needs_dot
def test_names_of_a_model_break_no_picture(hostile: View) -> None:
    picture = ElementTree.fromstring(hostile.svg())
    kinds = {element.tag.rpartition("}")[2] for element in picture.iter()}
    assert kinds <= {"svg", "g", "title", "polygon", "path", "text", "a", "ellipse"}
    shown = "".join(picture.itertext())
    assert "<script>alert(1)</script>" in shown


def test_what_a_notebook_shows_is_one_frame(hostile: View) -> None:
    page = Page(hostile._repr_html_())
    ((tag, attributes),) = page.elements
    assert tag == "iframe"
    assert attributes["srcdoc"] == hostile.html()


def test_the_page_without_its_data_is_small_and_needs_no_network() -> None:
    empty = View(ViewGraph("", "", (), ())).html()
    assert len(empty) < 400_000
    links = {"src", "href", "srcset", "action"}
    assert not [a for _, a in Page(empty).elements if links & a.keys()]
    assert set(re.findall(r"https?://[^\s\"']+", empty)) <= {"http://www.w3.org/2000/svg"}


def test_repeated_blocks_are_one_line() -> None:
    model, x = ResNet((1, 1, 1, 4), 4).eval(), torch.randn(1, 3, 32, 32)
    text = calque.show(model, x).text()
    assert "1 … 3: Bottleneck ×3" in text
    assert text.count("Bottleneck") == 5


def test_a_module_that_is_called_again_is_a_group_for_each_call() -> None:
    view = calque.show(Detector().eval(), torch.randn(1, 3, 32, 32))
    assert [g.call for g in view.groups if g.path == "boxes"] == [0, 1, 2]
