"""Programs that decide by tensors, as operators: one node chooses."""

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calque
from calque.graph import JaxInterpreter
from calque.tracing.graph import branching
from calque.upstream import torch_c
from calque.upstream.torch_internals import tree_map


class Chooses(nn.Module):
    """Both ways use one layer, so that the graph has two names for it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.mean() > 0:
            x = self.second(x).relu() + x
        else:
            x = self.first(x).sin()
        return x * 2


def test_values_gradients_and_the_program_itself() -> None:
    torch.manual_seed(0)
    model = Chooses()
    kept = list(model.parameters())
    lowered = calque.lower(calque.trace(model, torch.ones(4, 3)))
    assert all(a is b for a, b in zip(model.parameters(), kept, strict=True))
    assert torch_c.functorch.peek_interpreter_stack() is None
    ways = set()
    for sign in (20, -20):
        x = torch.full((4, 3), float(sign))
        ways.add(bool(model.first(x).mean() > 0))
        found, expected = lowered(x), model(x)
        torch.testing.assert_close(found, expected)
        a, b = (
            torch.autograd.grad(y.sum(), kept, materialize_grads=True) for y in (found, expected)
        )
        torch.testing.assert_close(a, b)
        array = JaxInterpreter(lowered)(x.numpy())
        torch.testing.assert_close(torch.tensor(array.tolist()), expected.detach())
    assert ways == {True, False}


def test_a_lowered_graph_with_operators_that_take_graphs_is_unpickled() -> None:
    lowered = calque.lower(calque.trace(Chooses(), torch.ones(4, 3)))
    again = copy.deepcopy(pickle.loads(pickle.dumps(lowered)))
    for sign in (20, -20):
        x = torch.full((4, 3), float(sign))
        assert torch.equal(again(x), lowered(x))

    def doubled(x: Tensor) -> Any:
        more = lambda i, x: i < 3
        return torch.while_loop(more, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))

    loop = calque.lower(calque.trace(doubled, torch.ones(2)))
    assert pickle.loads(pickle.dumps(loop))(torch.ones(2))[1].tolist() == [8, 8]


def leaves_early(x: Tensor) -> Tensor:
    if x.sum() > 1:
        return x * 1
    if x.sum() > 2:
        return x * 2
    if x.sum() > 3:
        return x * 3
    if x.sum() > 4:
        return x * 4
    if x.sum() > 5:
        return x * 5
    return x - 1


def test_nested_choices_are_not_traced_twice_as_often_at_each_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    staged, traced = branching._staged, []

    def counted(*args: Any) -> Any:
        traced.append(args)
        return staged(*args)

    monkeypatch.setattr(branching, "_staged", counted)
    lowered = calque.lower(calque.trace(leaves_early, torch.ones(3)))
    assert 5 <= len(traced) <= 5 * 6 / 2
    for x in (torch.zeros(3), torch.ones(3)):
        assert torch.equal(lowered(x), leaves_early(x))


def nested(x: Tensor, y: Tensor) -> Any:
    """Inner choices give back an operand; what is written to is none of them."""
    kept, written = y * 1, x * 1
    if x.sum() > 0:
        if y.sum() > 0:
            z = kept
        else:
            z = written * 2
    else:
        z = y
    written += 1
    return z + 1, kept, written


def test_an_operand_may_be_given_back_where_something_else_is_written_to() -> None:
    lowered = calque.lower(calque.trace(nested, torch.ones(2), torch.ones(2)))
    for signs in itertools.product((1.0, -1.0), repeat=2):
        given = [torch.full((2,), sign) for sign in signs]
        torch.testing.assert_close(lowered(*given), nested(*given))


def given_back_and_written(x: Tensor) -> Any:
    y = x * 1
    z = y if x.sum() > 0 else x * 2
    z += 1
    return y, z


def taken_and_written(x: Tensor) -> Any:
    y = x * 1
    z = y[0] if x.sum() > 0 else x[0] * 2
    y.mul_(3)
    return y, z


def written_inside(x: Tensor) -> Tensor:
    y = x * 1
    if x.sum() > 0:
        y.add_(1)
    return y


def written_in_an_outer_branch(x: Tensor) -> Any:
    y = x * 1
    if x.sum() > 0:
        z = y if x.sum() > 2 else y * 2
        z += 1
    else:
        z = x * 2
    return z, y


def made_once_and_written(x: Tensor) -> Any:
    a, b = x * 2, x * 3
    if x.sum() > 0:
        c = x * 4
        a, b = c, c
    a += 1
    return a, b


def alone_and_written(x: Tensor) -> Tensor:
    y = x * 1
    if x.sum() > 0:
        y = y * 2
    y += 1
    return y


def chosen_argument(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        return y if x.sum() > 3 else x
    return x


_WRITTEN = [
    given_back_and_written,
    taken_and_written,
    written_inside,
    written_in_an_outer_branch,
    made_once_and_written,
]
_COPIED = [nested, *_WRITTEN, alone_and_written, chosen_argument]


@pytest.mark.parametrize("program", _COPIED, ids=lambda f: f.__name__)
def test_a_write_is_seen_where_the_choice_is_a_copy(program: Any) -> None:
    """Under jit, the results of a choice are copies, as in a lowered graph."""
    count = program.__code__.co_argcount
    graph = calque.trace(program, *[torch.ones(2)] * count)
    jitted = calque.jit(graph)
    lowered = None if program in _WRITTEN else calque.lower(graph)
    for signs in itertools.product((4.0, 0.5, -1.0), repeat=count):
        given = [torch.full((2,), sign) for sign in signs]
        expected = program(*(x.clone() for x in given))
        found = jitted(*(x.to("jax") for x in given))
        found = tree_map(lambda x: x.cpu(), found)  # pyright: ignore[reportUnknownLambdaType]
        torch.testing.assert_close(found, expected)
        if lowered is not None:
            torch.testing.assert_close(lowered(*(x.clone() for x in given)), expected)


@pytest.mark.parametrize("program", _WRITTEN, ids=lambda f: f.__name__)
def test_a_copy_that_would_not_be_written_to_is_refused(program: Any) -> None:
    graph = calque.trace(program, torch.ones(2, 2))
    x = torch.ones(2, 2)
    torch.testing.assert_close(graph(x.clone()), program(x.clone()))
    with pytest.raises(calque.TraceError, match="one branch at|a branch or a loop body"):
        calque.lower(graph)
    assert torch_c.functorch.peek_interpreter_stack() is None


def test_both_ways_may_call_one_layer_and_read_views_of_one_tensor() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)

    def program(x: Tensor) -> Tensor:
        column = x[:, 0]
        if x.sum() > 0:
            return layer(x).relu() + column
        return layer(x.t()) - x

    lowered = calque.lower(calque.trace(program, torch.ones(3, 3)))
    for sign in (1.0, -1.0):
        x = torch.full((3, 3), sign, requires_grad=True)
        found, expected = lowered(x), program(x)
        torch.testing.assert_close(found, expected)
        leaves = (x, layer.weight)
        a, b = (torch.autograd.grad(y.sum(), leaves) for y in (found, expected))
        torch.testing.assert_close(a, b)


def test_the_test_and_the_body_of_a_loop_may_call_layers() -> None:
    torch.manual_seed(0)
    layer, other = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3).requires_grad_(False)

    def program(x: Tensor) -> Any:
        def inner(i: Tensor, y: Tensor) -> Any:
            bound = torch.ones(())
            return i + 1, torch.while_loop(lambda j, _: j < bound, again, (bound * 0, y))[1]

        def again(j: Tensor, y: Tensor) -> Any:
            return j + 1, layer(y) + other(y) * x

        def is_going(i: Tensor, y: Tensor) -> Tensor:
            return (i < 3) & (layer(y).sum() < 100)

        return torch.while_loop(is_going, inner, (torch.tensor(0), x))

    lowered = calque.lower(calque.trace(program, torch.ones(1, 3)))
    x = torch.rand(1, 3)
    torch.testing.assert_close(lowered(x), program(x))
    arrays = JaxInterpreter(lowered)(x.numpy())
    torch.testing.assert_close(torch.tensor(arrays[1].tolist()), program(x)[1])


def _fills_a_row(x: Tensor) -> Tensor:
    y = x.clone()
    if x.sum() > 0:
        y[0] = 5
    else:
        y.mul_(2)
    return y * 1


def _writes_further_inside(x: Tensor) -> Tensor:
    y = x.clone()
    if x.sum() > 0:
        if x.max() > 100:
            y.T.add_(1)
        x = x * 2
    return y + x


@pytest.mark.parametrize("functional", [True, False])
@pytest.mark.parametrize(
    "program",
    [_fills_a_row, _writes_further_inside, nn.BatchNorm1d(2)],
)
def test_a_branch_that_writes_to_a_tensor_from_outside_is_refused(
    program: Any, functional: bool
) -> None:
    def decided(x: Tensor) -> Tensor:
        return program(x) if x.sum() > 0 else x * 2

    decides = decided if isinstance(program, nn.Module) else program
    traced = calque.trace(decides, torch.ones(2, 2))
    with pytest.raises(calque.TraceError, match="a branch or a loop body writes") as raised:
        calque.lower(traced, functional=functional)
    assert "test_lower_choices.py" in raised.value.__notes__[0]


def test_a_branch_that_writes_to_its_own_tensors_keeps_these_writes() -> None:
    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            y = x * 1
            y[1].add_(1)
        else:
            y = torch.zeros(2, 2)
            y.copy_(x)
            y.mul_(3)
        return y

    lowered = calque.lower(calque.trace(program, torch.ones(2, 2)), functional=False)
    for x in (torch.ones(2, 2), -torch.ones(2, 2)):
        assert torch.equal(lowered(x), program(x))


@pytest.mark.parametrize("training", [True, False])
def test_branches_have_no_mode_of_their_own(training: bool) -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            return y * 2 if y.sum() > 0 else self.layer(y)

    model, x = Chooses().train(training), torch.randn(3, 4)
    graph = calque.trace(model, x)
    for made in (calque.lower(graph), calque.record(graph, x).graph()):
        for mode in (training, not training):
            torch.testing.assert_close(made.train(mode)(x), model(x))
