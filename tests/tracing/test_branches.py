"""`if` on tensors: each way through a program is in its graph, and gives what eager gives."""

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import calque
from calque import TraceError
from calque.tracing.graph.branching import Branch, cond
from tests.tracing.programs import asserts, asserts_showing_values

UP, DOWN, FAR = torch.full((3,), 1.0), torch.full((3,), -1.0), torch.full((3,), 10.0)
WAYS = (UP, DOWN, FAR, torch.tensor([1.0, -5.0, 2.0]))


def choices(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return graph.graph.find_nodes(op="call_function", target=cond)


def call(f: Callable[..., Any], x: torch.Tensor) -> Any:
    """What a program gives and does to its argument, or the error it raises."""
    given = x.clone()
    torch.manual_seed(0)
    try:
        result = f(given)
    except Exception as error:
        return type(error), str(error)
    return result, given


def check(f: Callable[..., Any], known: bool = True, ways: tuple = WAYS) -> torch.fx.GraphModule:
    """Trace a program, and compare it with eager on inputs that take each way."""
    graph = calque.trace(f, UP.clone()) if known else calque.symbolic_trace(f)
    for x in ways:
        expected, found = call(f, x), call(graph, x)
        if isinstance(expected[0], type):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
            assert pytree.tree_structure(found) == pytree.tree_structure(expected)
    return graph


def if_else(x: torch.Tensor) -> torch.Tensor:
    h = x * 2
    if h.sum() > 0:
        y = h + 1
    else:
        y = h - 1
    return y * 3


def if_alone(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        x = x.sqrt()
    return x + 1


def nested(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        if x.max() > 5:
            y = x / 10
        else:
            y = x.exp()
        y = y + 1
    else:
        y = -x
    return y.relu()


def elif_chain(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 20:
        return x - 20
    elif x.sum() > 0:
        return x + x
    elif x.min() < -3:
        return x.abs()
    else:
        return x * 0


def early_return(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if x.sum() < 0:
        return x, x.neg()
    y = x.cumsum(0)
    return y, x.log1p()


def ternary(x: torch.Tensor) -> torch.Tensor:
    return (x + 1 if x[0] > 0 else x - 1) * (2 if x[1] > 0 else 3)


def and_(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 and x.max() > 5 else x - 1


def or_(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() < 0 or x.max() > 5 else x - 1


def not_(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if not x.sum() > 0 else x - 1


def truth_of_a_number(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.relu().sum() else x - 1


def one_condition_twice(x: torch.Tensor) -> torch.Tensor:
    positive = x.sum() > 0
    if positive:
        y = x + 1
    x = x * 2
    if positive:
        x = x + y
    return x


def chained_comparison(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if 0 < x.sum() < 5 else x * 3


def loop_with_break(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        if x.sum() > 6:
            break
        x = x * 2
    return x


def loop_of_ifs(x: torch.Tensor) -> torch.Tensor:
    for i in range(3):
        x = x + 1 if x[i] > 0 else x * 3
    return x


def different_shapes_inside(x: torch.Tensor) -> torch.Tensor:
    y = x[:2] if x.sum() > 0 else x
    return y.sum()


def same_both_ways(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x + 1  # noqa: RUF034


def bool_call(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if bool((x > 0).all()) else x - 1


def numbers(x: torch.Tensor) -> torch.Tensor:
    factor = 2.0 if x.sum() > 0 else 0.5
    return x * factor


def raises(x: torch.Tensor) -> torch.Tensor:
    if x.max() > 5:
        raise ValueError("too large")
    return x + 1


def raises_both_ways(x: torch.Tensor) -> torch.Tensor:
    if x.sum() <= 0:
        if x.min() < -3:
            raise ValueError("far below")
        raise KeyError("below")
    return x + 1


def writes(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        x += 1
    else:
        x[0] = 7
    return x * 2


def writes_to_view(x: torch.Tensor) -> torch.Tensor:
    part = x[1:]
    if x.sum() > 0:
        part.mul_(5)
    return x + part.sum()


def alias_is_written_after(x: torch.Tensor) -> torch.Tensor:
    y = x if x.sum() > 0 else x * 2
    y += 1
    return x + y


def writes_then_raises(x: torch.Tensor) -> torch.Tensor:
    if x.max() > 5:
        x.zero_()
        raise ValueError("too large")
    return x + 1


def draws(x: torch.Tensor) -> torch.Tensor:
    noise = torch.rand(3) if x.sum() > 0 else torch.randn(3)
    return x + noise + torch.rand(3)


def dictionary(x: torch.Tensor) -> dict[str, Any]:
    out = {"x": x, "n": 3}
    if x.sum() > 0:
        out["x"] = x + 1
    return out


def cond_by_name(x: torch.Tensor) -> torch.Tensor:
    shift = x * 3
    return torch.cond(x.sum() > 0, lambda x: x + shift, lambda x: x - shift, (x,))


def no_grad_inside(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        with torch.no_grad():
            x = x * 2
    return x + 1


PROGRAMS = [
    if_else, if_alone, nested, elif_chain, early_return, ternary, and_, or_, not_,
    truth_of_a_number, one_condition_twice, chained_comparison, loop_with_break, loop_of_ifs,
    different_shapes_inside, same_both_ways, bool_call, numbers, raises, asserts, raises_both_ways,
    writes, writes_to_view, alias_is_written_after, writes_then_raises, draws, dictionary,
    cond_by_name, no_grad_inside,
]  # fmt: skip


@pytest.mark.sampled(30)
@pytest.mark.parametrize("known", [True, False], ids=["examples", "symbolic"])
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_every_way_gives_what_eager_gives(f: Callable[..., Any], known: bool) -> None:
    check(f, known)


def test_what_is_common_stands_outside_of_the_branches_once() -> None:
    graph = check(if_else)
    assert [node.name for node in graph.graph.nodes if node.op == "call_function"] == [
        "mul", "gt", "cond", "getitem", "mul_1",
    ]  # fmt: skip
    assert "h + 1" not in graph.code
    assert len(graph.true_graph_0.graph.nodes) == 3


def test_ifs_in_a_row_do_not_multiply() -> None:
    assert len(choices(check(loop_of_ifs))) == 3


def test_branches_that_do_the_same_are_no_choice() -> None:
    assert choices(check(same_both_ways)) == []


def test_what_is_known_from_shapes_is_no_choice() -> None:
    graph = check(lambda x: x + 1 if x.ndim == 1 and x.shape[0] > 2 else x - 1)
    assert choices(graph) == []


def test_nodes_within_branches_keep_their_origin() -> None:
    graph = check(if_else)
    (add,) = graph.true_graph_0.graph.find_nodes(op="call_function", target=operator.add)
    origin = add.meta["origin"]
    assert (origin.file, origin.text) == (__file__, "y = h + 1")
    assert add.meta["val"].shape == (3,)
    assert choices(graph)[0].meta["origin"].text == "if h.sum() > 0:"


def test_abstract_values_are_of_one_mode() -> None:
    graph = check(nested)
    modes = {
        id(node.meta["val"].fake_mode)
        for module in graph.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if isinstance(node.meta.get("val"), torch.Tensor)
    }
    assert len(modes) == 1


class Gated(torch.nn.Module):
    """Decides in a submodule of a submodule, with layers that only one way uses."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 3), Gate())
        self.scale = torch.nn.Parameter(torch.tensor(2.0))
        self.register_buffer("offset", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale


class Gate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(3, 3)
        self.down = torch.nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            self.calls += 1
            return self.up(x)
        return self.down(x).relu()


def gated() -> tuple[Gated, list[torch.Tensor]]:
    """A model, and inputs that take both ways."""
    torch.manual_seed(0)
    model = Gated()
    inputs = list(torch.randn(20, 3) * 3)
    signs = {bool(model.inner[0](x).sum() > 0) for x in inputs}
    assert signs == {True, False}
    return model, inputs


def gradients(model: torch.nn.Module, f: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    f(x).square().sum().backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    return [x.grad, *(found[name] for name in sorted(found))]


def test_choices_within_modules() -> None:
    model, inputs = gated()
    graph = calque.trace(model, inputs[0])
    reference = copy.deepcopy(model)
    for x in inputs:
        torch.testing.assert_close(graph(x), reference(x))
    torch.testing.assert_close(model.inner[1].calls, reference.inner[1].calls)
    assert reference.inner[1].calls > 0


def test_gradients_flow_through_the_branch_that_ran() -> None:
    model, inputs = gated()
    graph = calque.trace(model, inputs[0])
    for x in inputs[:6]:
        torch.testing.assert_close(gradients(model, graph, x), gradients(model, model, x))


def test_the_state_of_the_graph_is_the_state_of_the_model() -> None:
    model, inputs = gated()
    graph = calque.trace(model, inputs[0])
    used = {name for name in model.state_dict() if name != "offset"}
    assert set(graph.state_dict()) == used
    assert {id(p) for p in graph.parameters()} == {id(p) for p in model.parameters()}
    other = Gated()
    graph.load_state_dict({k: v for k, v in other.state_dict().items() if k in used})
    for x in inputs:
        torch.testing.assert_close(graph(x), other(x))


@pytest.mark.parametrize("outer", [lambda g: g, lambda g: torch.nn.Sequential(g)])
def test_a_graph_of_a_graph_has_the_same_state(outer: Callable[..., torch.nn.Module]) -> None:
    model, inputs = gated()
    traced = outer(calque.trace(model, inputs[0]))
    graph = calque.trace(traced, inputs[0])
    assert set(graph.state_dict()) == set(traced.state_dict())
    assert set(calque.trace(graph, inputs[0]).state_dict()) == set(traced.state_dict())
    graph.load_state_dict(outer(calque.trace(Gated(), inputs[0])).state_dict())
    for x in inputs:
        torch.testing.assert_close(graph(x), model(x))


@pytest.mark.parametrize("change", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_copies_of_the_graph_have_the_branches(change: Callable[..., Any]) -> None:
    model, inputs = gated()
    graph = change(calque.trace(model, inputs[0]))
    assert len(list(graph.parameters())) == len(list(model.parameters()))
    assert set(graph.state_dict()) == {name for name in model.state_dict() if name != "offset"}
    for x in inputs:
        torch.testing.assert_close(graph(x), model(x))


def test_an_assertion_that_shows_values_shows_itself() -> None:
    graph = calque.trace(asserts_showing_values, UP)
    torch.testing.assert_close(graph(UP), UP + 1)
    with pytest.raises(AssertionError, match=r"^assert x.max\(\) < 5, f\"not "):
        graph(FAR)


def test_errors_of_the_program_survive_a_copy() -> None:
    graph = pickle.loads(pickle.dumps(calque.trace(raises, UP)))
    with pytest.raises(ValueError, match="too large"):
        graph(FAR)


def test_a_graph_with_branches_is_traced_again() -> None:
    graph = calque.symbolic_trace(calque.trace(nested, UP))
    for x in WAYS:
        torch.testing.assert_close(graph(x), nested(x))
    assert len(choices(graph)) == 1


def test_dead_branches_go_and_those_with_effects_stay() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x.add_(1)
        y = x.exp() if x.sum() > 3 else x  # noqa: F841
        return x

    graph = check(f)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    assert len(choices(graph)) == 1
    for x in WAYS:
        torch.testing.assert_close(call(graph, x), call(f, x))


def test_constants_of_each_way_are_kept() -> None:
    up, down = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([9.0, 8.0, 7.0])
    graph = check(lambda x: (x * up if x.sum() > 0 else x * down) + up)
    assert {id(b) for b in graph.buffers()} == {id(up), id(down)}


def test_a_list_of_tensors_decides_part_by_part() -> None:
    def f(x: torch.Tensor) -> Any:
        return [part + 1 if part > 0 else part * 2 for part in x]

    check(f)


@pytest.mark.parametrize("known", [True, False], ids=["examples", "symbolic"])
def test_an_optional_result_is_refused(known: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        if x.sum() > 0:
            return x, None
        return x

    with pytest.raises(TraceError, match="two branches differ") as caught:
        calque.trace(f, UP) if known else calque.symbolic_trace(f)
    message = str(caught.value)
    assert f"{__file__}:{f.__code__.co_firstlineno + 1} in f" in message
    assert "a tuple of 2" in message
    assert len(message.splitlines()) <= 12


def test_results_of_two_shapes_are_refused_with_both_lines() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            y = x.repeat(2)
        else:
            y = x.double()
        return y

    with pytest.raises(TraceError, match="two branches differ") as caught:
        calque.trace(f, UP)
    line = f.__code__.co_firstlineno
    message = str(caught.value)
    assert f"{__file__}:{line + 1} in f" in message
    assert f"float32[6], from line {line + 2}: y = x.repeat(2)" in message
    assert f"float64[3], from line {line + 4}: y = x.double()" in message


def test_a_truth_of_many_elements_is_refused_as_pytorch_does() -> None:
    with pytest.raises(RuntimeError, match="more than one value is ambiguous"):
        calque.trace(lambda x: x if x > 0 else -x, UP)


def test_too_many_ways_are_refused_with_the_lines() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for i in range(3):
            if x[i] > 0:
                x = x + 1
        if x.sum() > 4:
            x = x - 1
        return x

    line = f.__code__.co_firstlineno
    with (
        calque.tracing.max_paths(8),
        pytest.raises(TraceError, match="more than 8 paths") as caught,
    ):
        calque.trace(f, UP)
    assert f"{__file__}:{line + 2} in f" in str(caught.value)
    assert "max_paths" in str(caught.value)
    with calque.tracing.max_paths(16):
        graph = calque.trace(f, UP)
    for x in WAYS:
        torch.testing.assert_close(graph(x), f(x))


def test_an_endless_loop_ends_in_an_error() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        while True:
            if not x.sum() > 100:
                return x
            x = x / 2

    with pytest.raises(TraceError, match="more than 64 paths"):
        calque.trace(f, UP)


def test_an_error_names_the_way_on_which_it_happens() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x @ torch.ones(4, 4)

    with pytest.raises(RuntimeError) as caught:
        calque.trace(f, UP)
    notes = "\n".join(caught.value.__notes__)
    assert f"{__file__}:{f.__code__.co_firstlineno + 1} in f is false" in notes


def test_a_program_that_differs_from_run_to_run_is_refused() -> None:
    runs = torch.zeros(())  # its value is not Python state

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            runs.add_(1)
            count = float(runs)
        x = x * count
        return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(TraceError, match="did something else"):
        calque.trace(f, UP)


def test_geometry_changed_in_place_is_changed_anew_on_each_way() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        x.unsqueeze_(0)
        return x + 1 if x.sum() > 0 else x - 1

    check(f)


def test_graphs_of_torch_fx_stay_as_they_are() -> None:
    with pytest.raises(torch.fx.proxy.TraceError, match="control flow"):
        calque.tracing.fx.symbolic_trace(if_else)


def test_a_branch_has_no_state_of_its_own() -> None:
    model, inputs = gated()
    graph = calque.trace(model, inputs[0])
    branches = [m for m in graph.modules() if isinstance(m, Branch)]
    assert len(branches) == 2
    assert [dict(branch.state_dict()) for branch in branches] == [{}, {}]


def test_functional_calls_reach_into_the_branches() -> None:
    model, inputs = gated()
    graph = calque.trace(model, inputs[0])
    other = {name: p + 1 for name, p in model.named_parameters()}
    for x in inputs[:6]:
        found = torch.func.functional_call(graph, other, (x,))
        torch.testing.assert_close(found, torch.func.functional_call(model, other, (x,)))


def test_batch_normalization_after_a_choice() -> None:
    class Normed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:
                x = x * 2
            return F.relu(self.norm(x))

    model = Normed()
    graph, reference = calque.trace(model, torch.ones(2, 3)), copy.deepcopy(model)
    for x in (torch.randn(4, 3) + 5, torch.randn(4, 3) - 5):
        torch.testing.assert_close(graph(x), reference(x))
    torch.testing.assert_close(model.norm.running_mean, reference.norm.running_mean)
    assert len(graph.true_graph_0.graph.find_nodes(op="call_module")) == 0


def test_membership_is_decided_by_a_tensor() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if 10.0 in x or x[0] in x[1:2] * -5:
            return x * 0
        return x

    check(f)


def test_a_truth_is_an_index() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return [x, -x][x.sum() > 0] * 2

    check(f)


def test_the_message_of_an_error_shows_no_values() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() < 0:
            raise ValueError(f"negative: {x.sum()} of {len(x)}")
        return x

    graph = calque.trace(f, UP)
    assert torch.equal(graph(UP), UP)
    with pytest.raises(
        ValueError, match=r"^negative: <the result of sum .*, made at line \d+> of 3$"
    ):
        graph(DOWN)


def test_an_error_is_not_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError, match="same number of elements") as caught:
        calque.trace(lambda x: x @ torch.ones(4) if x.sum() > 0 else x, UP)
    assert "is true" in caught.value.__notes__[-1]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


HOSTILE: list[Callable[[torch.Tensor], Any]] = []


def hostile(f: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    HOSTILE.append(f)
    return f


@hostile
def writes_in_finally(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    try:
        if x.sum() > 0:
            return y
        y = y * 3
    finally:
        y.add_(1)
    return y


@hostile
def catches_its_own_error(x: torch.Tensor) -> torch.Tensor:
    try:
        if x.sum() > 0:
            raise ValueError
    except ValueError:
        x = x * 10
    else:
        x = x - 1
    return x


@hostile
def sends_to_a_generator(x: torch.Tensor) -> torch.Tensor:
    def running() -> Any:
        total = x
        while True:
            step = yield total
            total = total + step if step > 0 else total

    steps = running()
    next(steps)
    return [steps.send(part) for part in x][-1]


@hostile
def matches(x: torch.Tensor) -> torch.Tensor:
    match (x.sum() > 0, x.max() > 5):
        case (True, True):
            return x
        case (True, False):
            return x * 2
        case _:
            return x * 3


@hostile
def takes_the_largest(x: torch.Tensor) -> Any:
    best, where = x[0], 0
    for i, part in enumerate(x):
        if part > best:
            best, where = part, i
    return best + where, max([x, -x], key=torch.sum), min(x)


@hostile
def writes_to_the_view_it_picks(x: torch.Tensor) -> torch.Tensor:
    picked = x[:1] if x.sum() > 0 else x[1:2]
    picked.mul_(10)
    return x + 1


@hostile
def counts_with_nonlocal(x: torch.Tensor) -> torch.Tensor:
    n = 0

    def scaled(t: torch.Tensor) -> torch.Tensor:
        nonlocal n
        n += 11 if t.sum() > 5 else 1
        return t * n

    return scaled(scaled(x)) + n


@hostile
def recurs(x: torch.Tensor, depth: int = 3) -> torch.Tensor:
    if not depth or x.sum() > 4:
        return x * 2
    return recurs(x + 1, depth - 1)


@hostile
def changes_a_dictionary(x: torch.Tensor) -> torch.Tensor:
    d: dict[str, Any] = {"a": 1, "x": x}
    if x.sum() > 0:
        del d["a"]
        d["x"] = d["x"] + 1
    return d["x"] * len(d)


@hostile
def stops_inside_a_block(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        for i in range(4):  # noqa: B007
            x = x + 1
            if -8 < x.sum() < 8:
                break
        else:
            x = x * 100
    return x + i


@pytest.mark.parametrize("f", HOSTILE, ids=lambda f: f.__name__)
def test_statements_of_python_are_followed(f: Callable[[torch.Tensor], Any]) -> None:
    check(f)
