"""Programs with parts of other kinds: hooks, checkpoints, TorchScript, loops, packed sequences."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import calque

SCALES = [torch.full((4,), 2.0), torch.ones(4)]


def defaults(x: Any, scales: Any = SCALES, named: Any = {"a": torch.ones(4)}) -> Any:  # noqa: B006
    return x * scales[0] + scales[1] + named["a"]


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.linear, self.reentrant = nn.Linear(4, 4), reentrant

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.linear, x, use_reentrant=self.reentrant) * 2  # type: ignore[operator]


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.linear = Inner(), nn.Linear(4, 4)
        self.inner.register_full_backward_hook(lambda module, given, gave: (given[0] * 2,))
        self.linear.register_full_backward_pre_hook(lambda module, gave: (gave[0] * 3,))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.inner(x))


def decided(x: Tensor) -> Any:
    return torch.cond(x.sum() > -1e9, lambda x: x * 2, lambda x: x * 3, (x,))


def looped(x: Tensor) -> Any:
    def more(count: Tensor, value: Tensor) -> Tensor:
        return count < 3

    def step(count: Tensor, value: Tensor) -> Any:
        return count + 1, value * 2

    return torch.while_loop(more, step, (torch.zeros((), dtype=torch.int64), x))[1]


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 5, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        lengths = torch.tensor([3, 2])
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        output, hidden = self.gru(packed)
        return pad_packed_sequence(output, batch_first=True)[0].sum() + hidden.sum(), output


def scripted() -> Any:
    return torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))


PROGRAMS: dict[str, Any] = {
    "tensors in defaults": (lambda: defaults, (3, 4)),
    "reentrant checkpoint": (lambda: Checkpointed(True), (3, 4)),
    "checkpoint": (lambda: Checkpointed(False), (3, 4)),
    "full backward hook": (Hooked, (3, 4)),
    "cond": (lambda: decided, (3, 4)),
    "while_loop": (lambda: looped, (3, 4)),
    "packed sequence": (Packed, (2, 3, 4)),
    "scripted part": (lambda: nn.Sequential(scripted(), nn.Tanh()), (3, 4)),
    "scripted program": (scripted, (3, 4)),
}
MAKERS: dict[str, Any] = {
    "trace": lambda program, x: calque.trace(program, x),
    "function": lambda program, x: calque.record(program, x).graph(),
    "module": lambda program, x: calque.record(program, x).graph("module"),
}


def gradient(program: Any, x: Tensor) -> Any:
    x = x.clone().requires_grad_()
    result = program(x)
    (result[0] if isinstance(result, tuple) else result).sum().backward()
    return result, x.grad


@pytest.mark.sampled(15)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Full backward hook")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("maker", MAKERS)
def test_a_graph_computes_what_its_parts_compute(name: str, maker: str) -> None:
    make, shape = PROGRAMS[name]
    program = make()
    if name == "while_loop" and maker == "trace":
        pytest.skip("a loop has no gradient in a graph of a trace")
    if name == "full backward hook" and maker == "trace":
        with pytest.raises(calque.TraceError, match="has hooks of the backward pass"):
            MAKERS[maker](program, torch.randn(shape).requires_grad_())
        return
    graph = MAKERS[maker](program, torch.randn(shape).requires_grad_())
    for x in (torch.randn(shape), torch.randn(shape)):
        for each in (graph, copy.deepcopy(graph)) if name != "full backward hook" else (graph,):
            torch.testing.assert_close(gradient(each, x), gradient(program, x))


@pytest.mark.parametrize("maker", MAKERS)
def test_a_default_with_tensors_is_the_default_or_refused(maker: str) -> None:
    x = torch.ones(3, 4)
    graph = MAKERS[maker](defaults, x)
    torch.testing.assert_close(graph(x), defaults(x))
    with pytest.raises(calque.TraceError, match="scales"):
        graph(x, SCALES)


def test_a_recorded_cond_guards_its_way() -> None:
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,))

    graph = calque.record(f, torch.ones(2)).graph()
    with pytest.raises(calque.TraceError, match="gave True .* gives False now"):
        graph(-torch.ones(2))


def test_hooks_of_the_backward_pass_are_never_lost() -> None:
    model, x = Hooked(), torch.randn(3, 4).requires_grad_()
    recording = calque.record(model, x)
    with pytest.raises(calque.TraceError, match="backward hooks"):
        recording.graph("aten")
    model.register_full_backward_hook(lambda module, given, gave: None)
    with pytest.raises(calque.TraceError, match="backward hooks"):
        calque.record(model, x).graph()
    with torch.no_grad():
        lowered = calque.lower(calque.record(nn.Sequential(model), x).graph())
        torch.testing.assert_close(lowered(x), model(x))


def test_a_graph_knows_the_examples_in_containers() -> None:
    def program(batch: dict[str, Any], *rest: torch.Tensor) -> Any:
        return {"sum": batch["x"] + batch["y"][0] * batch["n"] + sum(rest)}

    batch = {"x": torch.randn(3), "y": [torch.randn(3)], "n": 2}
    graph = calque.trace(program, batch, torch.randn(3))
    rest = torch.randn(3)
    torch.testing.assert_close(calque.lower(graph)(batch, rest), program(batch, rest))
    assert [info.shape for info in calque.convert.Calls(graph).inputs] == [(3,)] * 3


@torch.no_grad()  # dynamo warns of inputs with a graph
def test_what_is_compiled_is_traced_through() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = torch.compile(nn.Linear(3, 3), backend="eager")
            self.wave = torch.compile(lambda x: x.sin() * 2, backend="eager")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.wave(self.second(self.first(x)))

    model, x = Model(), torch.ones(2, 3)
    for program in (model, model.wave, model.second):
        graph = calque.trace(program, x)
        assert torch.equal(graph(x + 1), program(x + 1))
        assert {n.op for n in graph.graph.nodes} >= {"placeholder", "output"}
    assert "second._orig_mod.weight" in dict(calque.trace(model, x).named_parameters())


class Named(nn.Module):
    """Has members with names of attributes that every graph module has."""

    def __init__(self) -> None:
        super().__init__()
        self.graph, self.graph_ = nn.Linear(3, 3), nn.Tanh()
        self.code = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.meta = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.graph(x)
        x = self.code(x) * self.meta if x.sum() > 0 else self.graph_(x) + self.meta
        return self.code(x)


def test_members_may_have_the_names_of_attributes_of_graph_modules() -> None:
    model, x = Named(), torch.randn(2, 3)
    traced, recorded = calque.trace(model, x), calque.record(model, x)
    for graph in (traced, calque.lower(traced), recorded.graph("module"), recorded.graph("aten")):
        again = pickle.loads(pickle.dumps(graph))
        for each in (graph, copy.deepcopy(graph), again):
            torch.testing.assert_close(each(x), model(x))
    assert traced.get_parameter("code_.0.weight") is model.code[0].weight


SPARSE = torch.tensor([[0.0, 2.0], [1.0, 0.0]]).to_sparse()


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.sparse.mm(x.to_sparse(), x),
        lambda x: x.to_sparse().coalesce().values().sum(),
        lambda x: torch.sparse_coo_tensor(torch.tensor([[0, 1]]), x[0], (4,)).to_dense(),
        lambda x: x.to_sparse_csr() @ x,
        lambda x: SPARSE @ x,
    ],
)
def test_sparse_tensors_inside_a_program(program: Any) -> None:
    graph = calque.trace(program, torch.eye(2))
    other = torch.tensor([[3.0, 0.0], [5.0, 4.0]])
    for made in (graph, calque.lower(graph)):
        torch.testing.assert_close(made(other), program(other))
    with pytest.raises(calque.UnsupportedOpError, match="sparse"):
        calque.jit(program)(other.to("jax"))


def test_a_lazy_layer_that_has_not_been_called_is_refused() -> None:
    lazy = torch.nn.LazyLinear(3)
    with pytest.raises(calque.TraceError, match="Call it once"):
        calque.trace(lazy, torch.ones(2, 4))
    lazy(torch.ones(2, 4))
    assert calque.trace(lazy, torch.ones(2, 4))(torch.ones(5, 4)).shape == (5, 3)
