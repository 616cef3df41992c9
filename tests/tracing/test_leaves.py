"""Leaf modules that the program changes before it calls them."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.module import register_module_forward_hook

import calque
from calque import TraceError

X = torch.arange(12.0).reshape(4, 3).cos()
OUTSIDE = nn.BatchNorm1d(3).eval()


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bn, self.drop, self.lin = nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 3)


class OtherMode(Parts):
    def forward(self, x):
        self.bn.train()
        y = self.bn(x)
        self.bn.eval()
        return y + self.bn(x)


class OtherModeOfChildren(Parts):
    def forward(self, x):
        for child in self.children():
            child.train(True)
        return self.drop(self.bn(x))


class OneMode(Parts):
    def forward(self, x):
        self.drop.train()  # as for Monte Carlo dropout
        return self.drop(x)


class OtherProbability(Parts):
    def forward(self, x):
        before, self.drop.p = self.drop.p, 0.9
        y = nn.functional.dropout(x, self.drop.p) + self.drop.train()(x)
        self.drop.p = before
        return y


class OtherMomentum(Parts):
    def forward(self, x):
        self.bn.train()
        self.bn.momentum = 0.5
        y = self.bn(x)
        self.bn.momentum = 0.1
        self.bn.eval()
        return y


class Hooked(Parts):
    def forward(self, x):
        hook = self.lin.register_forward_hook(lambda module, given, result: result * 2)
        before = self.lin.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
        y = self.lin(x)
        hook.remove()
        before.remove()
        return y + self.lin(x)


class HookedEverywhere(Parts):
    def forward(self, x):
        hook = register_module_forward_hook(lambda module, given, result: result * 2)
        y = self.lin(x)
        hook.remove()
        return y + self.lin(x)


class OtherWeight(Parts):
    def forward(self, x):
        weight = self.lin.weight
        del self.lin.weight
        self.lin.weight = weight * 2
        y = self.lin(x)
        del self.lin.weight
        self.lin.weight = weight
        return y + self.lin(x)


class OtherWeightInItsDict(Parts):
    def forward(self, x):
        weight = self.lin.weight
        self.lin._parameters["weight"] = weight * 2
        y = self.lin(x)
        self.lin._parameters["weight"] = weight
        return y + self.lin(x)


class Functional(Parts):
    def forward(self, x):
        return torch.func.functional_call(self.lin, {"weight": self.lin.weight * 2}, (x,))


class OtherForward(Parts):
    def forward(self, x):
        self.lin.forward = lambda y: y + 1
        y = self.lin(x)
        del self.lin.forward
        return y + self.lin(x)


class OtherClass(Parts):
    def forward(self, x):
        self.lin.__class__ = nn.Identity
        y = self.lin(x)
        self.lin.__class__ = nn.Linear
        return y + self.lin(x)


class Outside(Parts):
    def forward(self, x):
        OUTSIDE.train()
        y = OUTSIDE(x)
        OUTSIDE.eval()
        return y + OUTSIDE(x)


class Padded(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 2, 2)

    def forward(self, x):
        self.conv.padding = (2,)
        wide = self.conv(x)
        self.conv.padding = (0,)
        return wide, self.conv(x)


def parts_of(model: nn.Module) -> list[Any]:
    """All that a trace may not change of a model, in order."""
    found: list[Any] = []
    for module in model.modules():
        found.append(type(module))
        for name, value in vars(module).items():
            found += [name, *(value.items() if isinstance(value, dict) else [value])]
    return found


PROGRAMS = [
    OtherMode, OneMode, OtherProbability, OtherMomentum, Hooked, HookedEverywhere, OtherWeight,
    OtherWeightInItsDict, Functional, OtherForward, OtherClass, Outside, OtherModeOfChildren,
    Padded,
]  # fmt: skip


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("known", [True, False], ids=["examples", "symbolic"])
def test_a_call_is_made_in_the_state_that_the_program_gives(kind: Any, known: bool) -> None:
    OUTSIDE.reset_running_stats()
    model = kind().eval()
    eager = copy.deepcopy(model)
    try:
        graph = calque.trace(model, X) if known else calque.symbolic_trace(model)
    except TraceError:
        assert not known  # the check of its input's shape then depends on values, and may raise
        return
    for step in range(3):
        torch.manual_seed(step)
        statistics = copy.deepcopy(OUTSIDE.state_dict())
        found = graph(X + step)
        OUTSIDE.load_state_dict(statistics)
        torch.manual_seed(step)
        torch.testing.assert_close(found, eager(X + step))
    torch.testing.assert_close(dict(model.state_dict()), dict(eager.state_dict()))


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_trace_leaves_the_model_as_a_call_does(kind: Any) -> None:
    model, eager = kind().eval(), kind().eval()
    calque.trace(model, X)
    eager(X)
    for a, b in zip(parts_of(model), parts_of(eager), strict=True):
        assert isinstance(a, type(b)), (a, b)
        assert isinstance(a, (tuple, nn.Module)) or isinstance(b, torch.Tensor) or a == b


def test_a_graph_is_one_node_where_nothing_was_changed() -> None:
    class Plain(Parts):
        def forward(self, x):
            return self.drop(self.bn(self.lin(x)))

    graph = calque.trace(Plain(), X)
    assert [n.target for n in graph.graph.nodes if n.op == "call_module"] == ["lin", "bn", "drop"]


@pytest.mark.parametrize("change", ["self.lin.register_forward_hook(print)", "self.lin = None"])
def test_what_stays_changed_is_refused_and_taken_back(change: str) -> None:
    class Changes(Parts):
        def forward(self, x):
            if change.startswith("self.lin.reg"):
                self.lin.register_forward_hook(lambda module, given, result: result * 2)
                return self.lin(x)
            y = self.lin(x)
            self.lin = None
            return y

    model = Changes()
    before = parts_of(model)
    with pytest.raises(TraceError, match=r"test_leaves.py:\d+ in forward|test_leaves.py in"):
        calque.trace(model, X)
    assert len(before) == len(parts_of(model))
    assert model.lin is not None
    assert not model.lin._forward_hooks


@pytest.mark.parametrize("kind", [nn.Dropout, lambda: nn.BatchNorm1d(3)])
def test_a_module_of_pytorchs_as_the_root_is_checked_for_its_mode(kind: Any) -> None:
    model = kind().train()
    graph = calque.trace(model, X)
    graph.eval()
    with pytest.raises(TraceError, match="traced in training mode"):
        graph(X)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_recurrent_layer_may_be_the_root(kind: Any) -> None:
    torch.manual_seed(0)
    model = kind(3, 4, 2, bidirectional=True)
    x = torch.randn(5, 2, 3)
    graph = calque.trace(model, x)
    torch.testing.assert_close(graph(-x), model(-x))
    graph(x)[0].sum().backward()
    assert model.weight_ih_l0.grad is not None


def test_recurrent_layers_are_leaves():
    class Stacked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LSTM(4, 4), nn.GRU(4, 4)

        def forward(self, x):
            return self.second(self.first(x)[0])[0]

    model, x = Stacked(), torch.randn(2, 3, 4)
    graph = calque.trace(model, x)
    called = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    assert called == ["first", "second"]
    torch.testing.assert_close(graph(x), model(x))


_layer = nn.Linear(3, 2)
_others = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}


def _with_other_weights(x: torch.Tensor) -> torch.Tensor:
    return functional_call(_layer, _others, (x,)) + _layer(x)


def _with_computed_weights(x: torch.Tensor) -> torch.Tensor:
    fast = {name: p * x.sum() for name, p in _layer.named_parameters()}
    return functional_call(_layer, fast, (x,))


def _with_a_parameter_for_a_while(x: torch.Tensor) -> torch.Tensor:
    before = _layer._parameters["weight"]
    _layer._parameters["weight"] = nn.Parameter(_others["weight"])
    found = _layer(x)
    _layer._parameters["weight"] = before
    return found


def _of_a_copy(x: torch.Tensor) -> torch.Tensor:
    copied = copy.deepcopy(_layer)
    with torch.no_grad():
        copied.weight.mul_(2)
    return copied(x) + _layer(x)


class _Exchanging(nn.Module):
    """Puts the weight of one layer into the place of another's, beside `setattr`."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.one._parameters["weight"]
        self.one._parameters["weight"] = self.other.weight
        found = self.one(x)
        self.one._parameters["weight"] = before
        return found + self.one(x)


@pytest.mark.parametrize(
    "program",
    [
        *(_with_other_weights, _with_computed_weights, _with_a_parameter_for_a_while),
        *(_of_a_copy, _Exchanging()),
    ],
    ids=lambda program: getattr(program, "__name__", "exchanging"),
)
def test_a_global_layer_is_called_with_other_weights(program: Any) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    graph = calque.trace(program, x)
    torch.testing.assert_close(graph(x + 1), program(x + 1))


def test_a_module_of_torchscript_is_one_node_and_may_be_the_program() -> None:
    x = torch.randn(1, 2)
    scripted = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
    for program in (scripted, torch.jit.trace(torch.nn.Linear(2, 2), x)):
        graph = calque.trace(program, x)
        assert torch.equal(graph(x), program(x))
        assert len(graph.graph.find_nodes(op="call_module")) == 1
        assert [p.shape for p in graph.parameters()] == [p.shape for p in program.parameters()]
        with pytest.raises(calque.TraceError, match="TorchScript"):
            calque.lower(graph)


class _Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_a_torchscript_module_within_a_program_is_a_leaf() -> None:
    model = nn.Sequential(torch.jit.script(_Inner()), nn.Linear(3, 2))
    graph = calque.trace(model, torch.ones(2, 3))
    x = torch.randn(2, 3)
    assert torch.equal(graph(x), model(x))
