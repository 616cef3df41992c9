"""Graphs of recordings: at each level, with each node's place, on each device."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calque
from calque.device.backend import backward_errors
from calque.graph import JaxInterpreter
from calque.tracing.core.origins import origin_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.scale = torch.full((4,), 2.0)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.block(self.block(x)) * self.scale
        return {"y": y, "mean": y.mean(-1)}


@pytest.fixture
def recording() -> Any:
    return calque.record(Net(), torch.randn(2, 4))


@pytest.mark.parametrize("level", ["module", "function", "aten"])
def test_each_level_computes_what_the_program_does(level: Any) -> None:
    model = Net()
    graph = calque.record(model, torch.randn(2, 4)).graph(level)
    x = torch.randn(2, 4)
    torch.testing.assert_close(graph(x), model(x))


def test_levels_differ_in_their_nodes(recording: Any) -> None:
    module, function, aten = (recording.graph(level) for level in ("module", "function", "aten"))
    targets = [node.target for node in module.graph.nodes if node.op == "call_module"]
    layers = ["block.norm", "block.mlp.0", "block.mlp.1", "block.mlp.2"]
    assert targets == [*layers, *layers]
    assert not function.graph.find_nodes(op="call_module")
    called = [node for node in aten.graph.nodes if node.op == "call_function"]
    assert torch.ops.aten.gelu.default in {node.target for node in called}


def test_the_user_says_which_modules_are_one_node(recording: Any) -> None:
    graph = recording.graph("module", leaf=lambda module, path: isinstance(module, Block))
    targets = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    assert targets == ["block", "block"]
    x = torch.randn(2, 4)
    y = graph.block(graph.block(x)) * 2
    torch.testing.assert_close(graph(x), {"y": y, "mean": y.mean(-1)})


def test_nodes_know_their_line_their_module_and_the_number_of_its_call(recording: Any) -> None:
    graph = recording.graph()
    nodes = [node for node in graph.graph.nodes if node.name.startswith("gelu")]
    origins = [origin_of(node) for node in nodes]
    assert [o and (o.module, o.call) for o in origins] == [("block.mlp.1", 0), ("block.mlp.1", 1)]
    (add, _) = [node for node in graph.graph.nodes if node.name.startswith("add")]
    assert "x + self.mlp(self.norm(x))" in add.meta["origin"].text
    assert list(add.meta["nn_module_stack"]) == ["block"]
    assert add.meta["val"].shape == (2, 4)


def test_parameters_have_their_names_and_constants_are_shown(recording: Any) -> None:
    graph = recording.graph()
    names = [str(node.target) for node in graph.graph.find_nodes(op="get_attr")]
    assert "block.mlp.0.weight" in names
    assert "scale" in names  # a tensor that is not a parameter
    outside = torch.arange(2.0)
    constant = calque.record(lambda x: x * outside, torch.ones(2)).graph()
    (name,) = [str(node.target) for node in constant.graph.find_nodes(op="get_attr")]
    assert getattr(constant, name) is outside


def test_gradients_flow_through_a_graph() -> None:
    model = Net()
    graph = calque.record(model, torch.randn(2, 4)).graph()
    x = torch.randn(2, 4)
    model(x)["y"].sum().backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    graph(x)["y"].sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], expected)


def test_a_graph_without_questions_about_sizes_runs_with_any() -> None:
    graph = calque.record(lambda x: x.relu().sum(-1), torch.ones(2, 3)).graph()
    assert graph(torch.ones(5, 4)).tolist() == [4] * 5


def test_a_size_that_was_asked_for_is_checked() -> None:
    graph = calque.record(lambda x: x.view(x.shape[0], -1), torch.ones(2, 3, 4)).graph()
    assert graph(torch.zeros(2, 3, 4)).shape == (2, 12)
    with pytest.raises(calque.TraceError, match="shape"):
        graph(torch.zeros(3, 3, 4))


def test_the_mode_of_an_opened_module_is_checked() -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    recording = calque.record(model, torch.ones(3))
    model.eval()
    with pytest.raises(calque.TraceError, match="training mode"):
        recording.graph()(torch.ones(3))
    assert recording.graph("module")(torch.ones(3)).tolist() == [1, 1, 1]


def test_one_tensor_given_twice_is_two_inputs_that_are_checked() -> None:
    x = torch.ones(2)
    graph = calque.record(lambda a, b: a * 2 + b, x, x).graph()
    assert graph(x, x).tolist() == [3, 3]
    with pytest.raises(calque.TraceError, match="one tensor for a and b"):
        graph(x, x + 1)


def test_a_method_and_a_partial_can_be_recorded() -> None:
    import functools

    model = Net()
    graph = calque.record(model.block.mlp.forward, torch.ones(2, 4)).graph()
    torch.testing.assert_close(graph(torch.ones(2, 4)), model.block.mlp(torch.ones(2, 4)))
    partial = functools.partial(torch.add, alpha=3)
    assert calque.record(partial, torch.ones(2), torch.ones(2)).graph()(
        torch.zeros(2), torch.ones(2)
    ).tolist() == [3, 3]


def test_a_recorded_program_runs_on_the_device_and_under_jit() -> None:
    model = Net().to("jax")
    model.scale = model.scale.to("jax")
    recording = calque.record(model, torch.randn(2, 4).to("jax"))
    x = torch.randn(2, 4).to("jax")
    for level in ("module", "function", "aten"):
        graph = recording.graph(level)
        torch.testing.assert_close(graph(x), model(x))
        jitted = calque.jit(graph)
        torch.testing.assert_close(jitted(x), model(x), rtol=1e-5, atol=1e-6)


def test_a_lowered_recording_is_a_function_of_jax() -> None:
    import jax

    model = Net()
    function = JaxInterpreter(calque.record(model, torch.ones(2, 4)).graph("aten"))
    found = function(jax.numpy.ones((2, 4)))
    torch.testing.assert_close(
        calque.to_torch(found["y"]).cpu(),
        model(torch.ones(2, 4))["y"].detach(),
        rtol=1e-5,
        atol=1e-5,
    )


def test_a_recording_of_a_graph_computes_the_same_calls() -> None:
    model, x = Net(), torch.randn(2, 4)
    first = calque.record(model, x)
    again = calque.record(first.graph(), x)
    names = [call.name for call in first.calls]
    assert [call.name for call in again.calls] == names


def test_levels_have_names() -> None:
    with pytest.raises(ValueError, match="'functions'"):
        calque.record(torch.relu, torch.ones(1)).graph("functions")  # type: ignore[arg-type]


def test_a_graph_that_reads_values_is_the_same_after_pickling() -> None:
    def f(x):
        y = x.new_ones(3) * 2
        if x.sum() > 0:
            y = y + len(x) + int(x.sum()) + x.tolist()[0]
        with torch.no_grad():
            return y + x.new_tensor([1.0]), f"{x.sum()}" == ""

    graph = calque.record(f, torch.ones(3)).graph()
    again = pickle.loads(pickle.dumps(graph))
    torch.testing.assert_close(again(torch.ones(3)), f(torch.ones(3)))
    with pytest.raises(calque.TraceError, match="gave True .* gives False now"):
        again(-torch.ones(3))


def test_inputs_with_defaults_are_the_same_after_pickling() -> None:
    def f(x, mask=None, scale=2.0):
        return x * scale if mask is None else x * mask

    x = torch.ones(3)
    for given in ((x,), (x, 3 * x)):
        for graph in (calque.trace(f, *given), calque.record(f, *given).graph()):
            again = pickle.loads(pickle.dumps(graph))
            torch.testing.assert_close(again(*given), f(*given))
    with pytest.raises(calque.TraceError, match="mask"):
        again(x, None)


WEIGHT = torch.randn(4, 4)
KEPT: dict[str, Tensor] = {}
ATTENTION = nn.MultiheadAttention(4, 2, batch_first=True)


class Reading(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * KEPT["scale"]


class Hiding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reading = Reading()

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        KEPT["scale"] = w.sum()
        result = self.reading(x)
        KEPT.clear()
        return result


def attend(x: Tensor, w: Tensor) -> Tensor:
    once = torch.func.functional_call(ATTENTION, {"out_proj.weight": w}, (x, x, x))[0]
    return once + ATTENTION(x, x, x)[0]


LAYER = nn.Linear(4, 4)
GIVEN = {
    "another's weight": lambda x, w: torch.func.functional_call(LAYER, {"weight": w}, x) + LAYER(x),
    "a weight of a layer inside": attend,
    "a constant weight": lambda x, w: torch.func.functional_call(
        ATTENTION, {"out_proj.weight": WEIGHT}, (x, x, x)
    )[0],
    "a value that is not handed over": Hiding(),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_module_that_computes_with_what_it_is_not_given_is_opened(name: str) -> None:
    program: Any = GIVEN[name]
    recording = calque.record(program, torch.randn(1, 2, 4), torch.randn(4, 4))
    x, w = torch.randn(1, 2, 4), torch.randn(4, 4)
    for graph in (recording.graph("module"), recording.graph(leaf=lambda module, path: True)):
        torch.testing.assert_close(graph(x, w), program(x, w))


class GivesBack(nn.Module):
    """Writes to its argument and to a buffer, and gives them back."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Tensor) -> Any:
        x += 1
        self.count += x
        return x, {"count": self.count, "twice": x * 2}


@pytest.mark.parametrize("level", ["function", "aten"])
def test_what_is_written_to_and_given_back_is_itself(level: Any) -> None:
    model = GivesBack()
    graph = calque.record(model, torch.zeros(3)).graph(level)
    x = torch.zeros(3)
    first, named = graph(x)
    assert first is x
    assert named["count"] is model.count
    assert (x.tolist(), named["twice"].tolist()) == ([1.0] * 3, [2.0] * 3)
    assert model.count.tolist() == [2.0] * 3


def test_strides_decide_what_a_write_reaches() -> None:
    def program(x: Tensor) -> Tensor:
        y = x.reshape(-1)
        y += 1
        return y.sum()

    recording = calque.record(program, torch.zeros(2, 3))
    graph, x, turned = recording.graph("aten"), torch.zeros(2, 3), torch.zeros(3, 2).t()
    assert (graph(x), x.sum()) == (6, 6)
    assert (recording.graph()(turned), turned.sum()) == (6, 0)
    with pytest.raises(calque.TraceError, match=r"x.stride = \(3, 1\), called with \(1, 2\)"):
        graph(turned)


@pytest.mark.parametrize(
    "program",
    [
        torch.func.jacrev(lambda x: x.sin() * x.sum()),
        torch.func.hessian(lambda x: (x**3).sum()),
        torch.func.vmap(torch.func.grad(lambda x: x.prod())),
    ],
    ids=["jacrev", "hessian", "per sample"],
)
def test_derivatives_of_torch_func_are_recorded_on_the_device(program: Any) -> None:
    def run(x: Tensor) -> Tensor:
        return program(x)

    x, other = torch.randn(3, 3, device="jax"), torch.randn(3, 3, device="jax")
    graph = calque.record(run, x).graph()
    torch.testing.assert_close(graph(other), run(other))


def test_what_the_device_does_in_a_thread_of_its_own_is_not_recorded() -> None:
    run: Any = torch.autograd.graph._engine_run_backward

    def program(x: Tensor) -> Tensor:
        backward_errors._has_thread(run.__wrapped__)  # like the first backward in a process
        return x + 1

    recording = calque.record(program, torch.ones(2))
    assert [call.name for call in recording.calls] == ["add"]


class Backwards(nn.Module):
    """Uses its members in another order than it has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(self.norm(self.inner(self.last(x) * self.scale)))


def test_members_have_the_order_of_the_program() -> None:
    model, x = Backwards(), torch.randn(2, 3)
    recording, traced = calque.record(model, x), calque.trace(model, x)
    names = [*model.state_dict()]
    graphs = [recording.graph(level) for level in ("module", "function", "aten")]
    for graph in (*graphs, traced, calque.lower(traced), copy.deepcopy(traced)):
        assert [*graph.state_dict()] == names
    saved = torch.optim.Adam(model.parameters()).state_dict()
    optimizer = torch.optim.Adam(traced.parameters())
    optimizer.load_state_dict(saved)  # matches state by position
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], model.parameters()))


def test_the_function_of_vjp_may_be_called_later() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        scale = x * 2
        (y, z), pull = torch.func.vjp(lambda a, b: (a * scale, (a @ b).tanh()), x, x + 1)
        return (*pull((y, z)), z)

    recording = calque.record(program, torch.randn(3))
    for level in ("function", "aten"):
        x = torch.randn(3, requires_grad=True)
        found, expected = recording.graph(level)(x), program(x)
        assert all(map(torch.equal, found, expected))
        gradients = [
            torch.autograd.grad(sum(t.sum() for t in ts), x)[0] for ts in (found, expected)
        ]
        torch.testing.assert_close(*gradients)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
def test_a_level_of_forward_mode_that_pytorch_enters_is_named() -> None:
    recording = calque.record(lambda x: torch.func.linearize(torch.sin, x)[1](x), torch.randn(3))
    with pytest.raises(calque.TraceError, match=r"test_graphs\.py:\d+ .*forward_ad"):
        recording.graph()


@pytest.mark.parametrize("level", ["function", "module", "aten"])
def test_a_pickled_graph_keeps_the_names_and_places_of_its_nodes(
    recording: Any, level: Any
) -> None:
    graph = recording.graph(level)
    loaded = pickle.loads(pickle.dumps(graph))

    def known(node: Any) -> Any:
        stack = list(node.meta.get("nn_module_stack", {}).values())
        shape = getattr(node.meta.get("val"), "shape", None)
        return str(node.target), origin_of(node), stack, shape

    before, after = ({n.name: n for n in g.graph.nodes} for g in (graph, loaded))
    assert all(known(node) == known(before[name]) for name, node in after.items())
    missing = [node for name, node in before.items() if name not in after]
    assert all(node.op == "get_attr" for node in missing)  # a parameter that is read twice
    if level != "aten":
        calque.lower(loaded)  # without examples, because the shapes of the inputs are known
    again = pickle.loads(pickle.dumps(copy.deepcopy(loaded)))
    assert [n.name for n in again.graph.nodes] == [n.name for n in loaded.graph.nodes]


def test_a_pickled_graph_that_was_edited_has_no_place_for_ambiguous_nodes(recording: Any) -> None:
    graph = recording.graph()
    relu = next(iter(graph.graph.find_nodes(op="call_function", target=torch._C._nn.gelu)))
    with graph.graph.inserting_after(relu):
        added = graph.graph.call_function(torch.sin, (relu,))
    relu.replace_all_uses_with(added, delete_user_cb=lambda user: user is not added)
    graph.recompile()
    loaded = pickle.loads(pickle.dumps(graph))
    (sin,) = loaded.graph.find_nodes(op="call_function", target=torch.sin)
    assert "origin" not in sin.meta
    found = loaded.graph.find_nodes(op="call_function", target=torch._C._nn.gelu)
    assert all("test_graphs.py" in str(origin_of(node)) for node in found)
