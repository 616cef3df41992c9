import copy
import pickle
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calque
from calque.graph import JaxInterpreter
from calque.tracing import fx, lower


def operators(graph: fx.GraphModule) -> list[str]:
    return [str(n.target) for n in graph.graph.nodes if str(n.target).startswith("aten.")]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return self.norm(y).relu()


def test_every_call_is_an_aten_operator_and_keeps_its_place() -> None:
    graph = lower(calque.trace(Norm(), torch.randn(5, 3)))
    calls = [n for n in graph.graph.nodes if n.op == "call_function"]
    assert all(
        n.target.__module__ in ("torch._ops.aten", "calque.tracing.graph.checks", "_operator")
        for n in calls
    )
    lines = {str(n.target): (n.meta["origin"].text, n.meta["origin"].module) for n in calls}
    assert lines["aten.addmm.default"] == ("y = self.linear(x)", "linear")
    assert lines["aten.relu.default"] == ("return self.norm(y).relu()", "")
    assert lines["aten.copy_.default"] == ("return self.norm(y).relu()", "norm")
    assert all("origin" in n.meta for n in graph.graph.nodes)
    relu = next(n for n in calls if n.target is torch.ops.aten.relu.default)
    assert relu.meta["val"].shape == (5, 4)
    assert f'File "{__file__}"' in relu.stack_trace


def test_a_module_that_was_not_traced_is_refused() -> None:
    module: Any = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="not a Linear: calque.trace makes one"):
        calque.lower(module, torch.ones(1, 2))


def test_parameters_and_buffers_are_those_of_the_program() -> None:
    model = Norm()
    graph = lower(calque.trace(model, torch.randn(5, 3)))
    assert graph.linear.weight is model.linear.weight
    before = model.norm.running_mean.clone()
    graph(torch.randn(5, 3))
    assert not torch.equal(model.norm.running_mean, before)
    assert model.norm.num_batches_tracked == 1


def test_lowering_changes_nothing() -> None:
    model, x = Norm(), torch.randn(5, 3)
    state = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    lower(calque.trace(model, x), x)
    torch.testing.assert_close(model.state_dict(), state)
    assert torch.equal(torch.get_rng_state(), random)


def writes(x: Tensor) -> Tensor:
    x[0].add_(1)
    return x.sum()


def test_writes_are_one_copy_at_the_end_or_stay() -> None:
    graph = calque.trace(writes, torch.ones(2, 3))
    assert operators(lower(graph))[-1] == "aten.copy_.default"
    assert "aten.add_.Tensor" not in operators(lower(graph))
    assert "aten.add_.Tensor" in operators(lower(graph, functional=False))


def test_the_copy_comes_from_the_line_that_wrote() -> None:
    lowered = lower(calque.trace(writes, torch.ones(2, 3)))
    (copied,) = (n for n in lowered.graph.nodes if n.target is torch.ops.aten.copy_.default)
    assert copied.meta["origin"].text == "x[0].add_(1)"


def test_no_gradient_flows_through_a_block_without_gradients() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x * 2
        return x * scale

    x = torch.ones(2, requires_grad=True)
    lowered = lower(calque.trace(f, torch.ones(2)), x)
    (gradient,) = torch.autograd.grad(lowered(x).sum(), x)
    assert gradient.tolist() == [2.0, 2.0]


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def test_a_gradient_of_its_own_is_not_lost() -> None:
    def f(x: Tensor) -> Tensor:
        return Rounded.apply(x) * 2

    x = torch.rand(3, requires_grad=True)
    graph = calque.trace(f, x)
    with pytest.raises(calque.TraceError, match="defines its own gradient"):
        lower(graph)
    with torch.no_grad():
        lowered = lower(graph)
    assert operators(lowered)[0] == "aten.round.default"
    assert not lowered(x).requires_grad


def test_other_shapes_and_dtypes_are_refused() -> None:
    lowered = lower(calque.trace(lambda x: x.relu(), torch.ones(2)))
    with pytest.raises(calque.TraceError, match="shape"):
        lowered(torch.ones(3))
    with pytest.raises(calque.TraceError, match="dtype"):
        lowered(torch.ones(2, dtype=torch.float64))


def test_another_mode_is_refused() -> None:
    lowered = lower(calque.trace(nn.Sequential(nn.Dropout()), torch.ones(2)))
    lowered(torch.ones(2))
    with pytest.raises(calque.TraceError, match="mode"):
        lowered.eval()(torch.ones(2))


def test_the_signature_stays() -> None:
    def f(x: Tensor, pair: tuple[Tensor, dict[str, Tensor]], scale: float = 2.0) -> Tensor:
        return (x + pair[0] - pair[1]["a"]) * scale

    x, y, z = torch.rand(3, 2)
    lowered = lower(calque.trace(f, x, (y, {"a": z}), scale=3.0), x, (y, {"a": z}), scale=3.0)
    torch.testing.assert_close(lowered(z, pair=(x, {"a": y}), scale=3.0), (z + x - y) * 3)
    with pytest.raises(calque.TraceError, match="scale"):
        lowered(x, (y, {"a": z}))


class Result(OrderedDict):
    pass


def test_results_keep_their_classes() -> None:
    def f(x: Tensor) -> Any:
        return Result(a=x + 1, b=[x.relu(), None, 3])

    graph = calque.trace(f, torch.ones(2))
    for traced in (graph, lower(graph), copy.deepcopy(lower(graph))):
        found = traced(torch.zeros(2))
        assert type(found) is Result
        assert found is not traced(torch.zeros(2))
        torch.testing.assert_close(dict(found), dict(f(torch.zeros(2))))


def test_a_result_that_cannot_be_pickled_is_refused() -> None:
    class Local:
        def __init__(self, x: Tensor) -> None:
            self.x = x

    with pytest.raises(calque.TraceError, match="returns a Local"):
        calque.trace(lambda x: Local(x), torch.ones(2))


def test_random_numbers_are_drawn_in_each_run() -> None:
    lowered = lower(calque.trace(lambda x: F.dropout(x, 0.5), torch.ones(100)))
    assert not torch.equal(lowered(torch.ones(100)), lowered(torch.ones(100)))


def test_one_tensor_given_twice_is_two_inputs() -> None:
    x = torch.ones(2)
    lowered = lower(calque.trace(lambda x, y: x - y, x, x), x, x)
    assert lowered(torch.ones(2), torch.zeros(2)).tolist() == [1.0, 1.0]


def test_tied_parameters_are_one() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    lowered = lower(calque.trace(model, torch.ones(1, 2)))
    assert len(lowered.graph.find_nodes(op="get_attr")) == 1


def test_without_an_example_one_has_to_be_given() -> None:
    graph = calque.symbolic_trace(lambda x: x.relu())
    with pytest.raises(calque.TraceError, match="example"):
        lower(graph)
    assert operators(lower(graph, torch.ones(2))) == ["aten.relu.default"]


def test_graphs_of_other_tracers_can_be_lowered() -> None:
    graph = torch.fx.symbolic_trace(Norm().eval())
    x = torch.randn(5, 3)
    torch.testing.assert_close(lower(graph, x)(x), graph(x))


def test_values_that_decide_are_refused_at_their_line() -> None:
    graph = calque.symbolic_trace(lambda x: x[x > 0].sum())
    with pytest.raises(Exception) as raised:
        lower(graph, torch.ones(3))
    assert any(__file__ in note for note in raised.value.__notes__)


def test_a_lowered_graph_can_be_pickled() -> None:
    lowered = lower(calque.trace(Norm().eval(), torch.randn(5, 3)))
    loaded = pickle.loads(pickle.dumps(lowered))
    x = torch.randn(5, 3)
    torch.testing.assert_close(loaded(x), lowered(x))


def test_a_function_may_change_the_list_that_it_is_given() -> None:
    graph = calque.symbolic_trace(lambda x: takes_the_last([1, 2], x))
    assert lower(graph, torch.ones(2))(torch.ones(2)).tolist() == [2, 2]


@calque.tracing.wrap
def takes_the_last(numbers: list[int], x: torch.Tensor) -> torch.Tensor:
    return x * numbers.pop()


def test_an_error_of_the_program_is_an_operator() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() < 0:
            raise ValueError("negative")
        return x * 2

    lowered = lower(calque.trace(f, torch.ones(2)))
    assert lowered(torch.ones(2)).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="ValueError: negative"):
        lowered(-torch.ones(2))


def test_gradients_within_a_program_are_refused_with_the_line() -> None:
    def program(x: Tensor) -> Any:
        y = x.detach().requires_grad_()
        (y * y).sum().backward()
        return y.grad

    graph = calque.record(program, torch.ones(2)).graph()
    assert torch.equal(graph(3 * torch.ones(2)), 6 * torch.ones(2))
    with pytest.raises(calque.TraceError, match="gradients within the program") as caught:
        calque.lower(graph)
    assert "test_lower.py:" in caught.value.__notes__[0]


def test_a_tensor_that_requires_no_gradient_is_lowered() -> None:
    graph = calque.record(lambda x: (x * 2).detach().requires_grad_(False), torch.ones(2)).graph()
    assert torch.equal(calque.lower(graph)(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_with_the_line() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.nested.nested_tensor([x, x[:1]]).to_padded_tensor(0.0)

    graph = calque.record(program, torch.ones(2, 2)).graph()
    x = torch.randn(2, 2)
    assert torch.equal(graph(x), program(x))
    with pytest.raises(calque.TraceError, match="cannot run on tensors without data") as caught:
        calque.lower(graph)
    assert "test_lower.py:" in caught.value.__notes__[0]


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.last: Any = None
        self.register_buffer("seen", torch.zeros(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.linear(x))
        self.last = [y, {"sum": y.sum()}]
        return y + 1


class RemembersInABuffer(Remembers):
    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.linear(x))
        self.seen = y * 2
        self.last = self.linear.given = x + 1
        return y


def remembered(model: Any) -> Any:
    return [model.last, getattr(model.linear, "given", None), model.seen]


@pytest.mark.parametrize("kind", [Remembers, RemembersInABuffer])
def test_a_lowered_graph_assigns_the_attributes_that_the_program_assigns(kind: Any) -> None:
    torch.manual_seed(0)
    x, model = torch.randn(5, 3), kind()
    owner = copy.deepcopy(model).eval()
    model.eval()
    graph = calque.trace(owner, x, tracer="record" if kind is RemembersInABuffer else "symbolic")
    lowered = lower(graph)
    for member in (owner, owner.linear):
        vars(member).pop("given", None)
    owner.last = None
    for _ in range(2):
        other = torch.randn(5, 3)
        torch.testing.assert_close(lowered(other), model(other))
        torch.testing.assert_close(remembered(owner), remembered(model))


@pytest.mark.parametrize("level", ["trace", "module", "function"])
def test_a_lowered_graph_refuses_another_mode_of_each_module(level: str) -> None:
    model, x = nn.Sequential(Norm(), nn.Dropout()), torch.randn(5, 3)
    model[0].norm.eval()  # frozen as in fine-tuning
    graph = calque.trace(model, x) if level == "trace" else calque.record(model, x).graph(level)
    lowered = lower(graph, x)
    lowered(x)
    for change in (lowered.eval, lowered.train):
        change()
        with pytest.raises(calque.TraceError, match="mode and reads self.training"):
            lowered(x)
    lowered.get_submodule("0.norm").eval()
    lowered(x)


def through_data(y: Tensor) -> None:
    y.data.mul_(2)


def through_data_of_a_part(y: Tensor) -> None:
    y.view(-1).data[0] = 7


def through_detach(y: Tensor) -> None:
    y.detach().add_(2)


def without_gradients(y: Tensor) -> None:
    with torch.no_grad():
        y[0].mul_(2)


def by_assignment(y: Tensor) -> None:
    y.data = y.data * 5


UNSEEN = [through_data, through_data_of_a_part, through_detach, without_gradients, by_assignment]


@pytest.mark.parametrize("write", UNSEEN)
@pytest.mark.parametrize("recorded", [True, False])
def test_a_write_that_autograd_does_not_see_is_no_operator(write: Any, recorded: bool) -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))

    def f(x):
        y = weight * x
        write(y)
        return y * 3

    x = torch.ones(2)
    graph = calque.record(f, x).graph() if recorded else calque.trace(f, x)
    for result in (graph(x), f(x)):
        torch.testing.assert_close(torch.autograd.grad(result.sum(), weight)[0], 3 * x)
    with pytest.raises(calque.TraceError, match=r"where autograd does not see it") as raised:
        lower(graph, x)
    assert write.__name__ in str(raised.value)
    with torch.no_grad():
        torch.testing.assert_close(lower(graph, x)(x), f(x))


def test_writes_that_autograd_need_not_see_are_lowered() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))

    def f(x):
        y = weight * x
        copy = y.detach().clone()
        copy.mul_(2)
        x.data.add_(1)
        with torch.no_grad():
            noise = torch.zeros(2).add_(y)
        return y * copy + x + noise

    x, other = torch.ones(2), torch.ones(2)
    lowered = lower(calque.trace(f, x))
    torch.testing.assert_close(lowered(other), f(x))
    torch.testing.assert_close(other, x)


def test_pooling_of_channels_last_has_no_operator_that_writes() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(x, 1) * 2

    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    lowered = calque.lower(calque.trace(program, x), x)
    targets = [node.target for node in lowered.graph.nodes if node.op == "call_function"]
    assert not any(getattr(t, "_schema", None) and t._schema.is_mutable for t in targets)
    assert torch.equal(lowered(x), program(x))
    assert lowered(x).stride() == program(x).stride()


def test_modules_of_torchscript_are_refused_in_words() -> None:
    model = torch.nn.Sequential(torch.jit.script(torch.nn.Linear(2, 2)))
    with pytest.raises(calque.TraceError, match="a TorchScript module is one opaque call"):
        calque.record(model, torch.ones(1, 2)).graph("aten")


def test_a_graph_of_dynamo_whose_code_is_not_made_yet() -> None:
    graphs: list[tuple[torch.fx.GraphModule, list[Tensor]]] = []

    def backend(module: torch.fx.GraphModule, given: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append((copy.deepcopy(module), list(given)))
        return module

    torch._dynamo.reset()  # another test may have compiled such a module for other shapes
    torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend=backend)(torch.randn(2, 4))
    (graph, given), *_ = graphs
    for made in (
        calque.lower(copy.deepcopy(graph), *given),
        calque.record(copy.deepcopy(graph), *given).graph("aten"),
    ):
        torch.testing.assert_close(made(*given), copy.deepcopy(graph)(*given))


@pytest.mark.parametrize(
    "share",
    [
        lambda x, y: x.type_as(y),
        lambda x, y: torch.broadcast_tensors(x, y)[0],
        lambda x, y: torch.atleast_1d(x),
        lambda x, y: torch.atleast_2d(x, y)[0],
        lambda x, y: torch.atleast_3d(x),
        lambda x, y: torch.einsum("ij->ji", x),
        lambda x, y: torch.meshgrid(x.view(-1), indexing="ij")[0],
        lambda x, y: torch.cartesian_prod(x.view(-1)),
        lambda x, y: x.sum_to_size(3, 4),
        lambda x, y: F.dropout2d(x[None, None], 0.5, False),
        lambda x, y: F.feature_alpha_dropout(x, 0.5, False),
        lambda x, y: torch.conj_physical(x),
        lambda x, y: torch.unsafe_chunk(x, 2)[0],
        lambda x, y: x.unsafe_split(2)[1],
        lambda x, y: x.to_dense(),
    ],
)
def test_a_write_to_a_result_that_may_share_memory_is_a_write(share: Any) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        share(x, y).mul_(2)
        return x + 1

    def fresh() -> tuple[Tensor, Tensor]:
        return torch.arange(12.0).view(3, 4), torch.ones(3, 4)

    x, other = fresh()[0], fresh()[0]
    expected = program(other, fresh()[1])
    for graph in (
        lower(calque.trace(program, *fresh())),
        calque.record(program, *fresh()).graph("aten"),
    ):
        x = fresh()[0]
        assert torch.equal(graph(x, fresh()[1]), expected)
        assert torch.equal(x, other)


def test_functions_that_may_share_memory_compute_what_they_do() -> None:
    def program(x: Tensor, y: Tensor, z: Tensor) -> Any:
        grids = (torch.meshgrid(x[0], y[:, 0], z[0], indexing=each) for each in ("ij", "xy"))
        sums = torch.einsum("ij,kj->ik", x, y), torch.einsum("ii->i", x[:, :3])
        edges = torch.atleast_3d(x[0], z), torch.cartesian_prod(x[0], y[0]), x.sum_to_size(1, 4)
        return *grids, sums, edges, torch.broadcast_tensors(x[0], y)

    args = torch.randn(3, 4), torch.randn(3, 4), torch.randn(())[None, None]
    found = lower(calque.trace(program, *args))(*args)
    torch.testing.assert_close(found, program(*args), rtol=0, atol=0)


def test_numbers_in_a_list_are_not_known() -> None:
    def cropped(x: Tensor, box: Tensor) -> Tensor:
        left, right = box.tolist()
        return x[left:right]

    graph = calque.trace(cropped, torch.arange(5.0), torch.tensor([1, 3]))
    with pytest.raises(calque.TraceError, match="tolist reads a number, which is not known"):
        lower(graph)


def test_the_traceback_of_a_refusal_has_only_the_frames_of_the_user() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]

    recording = calque.record(program, torch.ones(3))
    for refused in (lambda: recording.graph("aten"), lambda: calque.lower(recording.graph())):
        with pytest.raises(calque.TraceError) as caught:
            refused()
        assert {str(entry.path) for entry in caught.traceback} == {__file__}


def of_integers(table: Tensor, k: Tensor) -> Any:
    made = table.clone()
    made[k] = made[k] * 2 + 1
    made[k, 1] += 5
    made[:, k - k] = table[:, 1]
    made[k, ..., 1:] = table[0, :, :2]
    last = k.clone()
    row = made[last]
    last -= 1
    row[1:].mul_(2)  # reaches the table, where the number was before it changed
    return made, row, table[k, None, [0, 1]], table[0, k - k, ..., k - k], table[..., k][k]


def test_an_index_may_be_a_tensor_of_one_integer() -> None:
    examples = torch.randn(4, 3, 3, requires_grad=True), torch.tensor(1)
    recorded = calque.record(of_integers, *examples).graph("aten")
    for lowered in (calque.lower(calque.trace(of_integers, *examples)), recorded):
        for k in (2, -2):
            given = torch.randn(4, 3, 3, requires_grad=True), torch.tensor(k)
            found, expected = lowered(*given), of_integers(*given)
            torch.testing.assert_close(found, expected)
            a, b = (
                torch.autograd.grad(torch.stack([part.sum() for part in parts]).sum(), given[0])
                for parts in (found, expected)
            )
            torch.testing.assert_close(a, b)
        array = JaxInterpreter(lowered)(given[0].detach().numpy(), given[1].numpy())[1]
        torch.testing.assert_close(torch.tensor(array.tolist()), expected[1].detach())


def test_a_truth_value_as_an_index_is_refused() -> None:
    for index in (torch.tensor(True), torch.tensor(1, dtype=torch.uint8)):
        with pytest.raises(calque.TraceError, match="a tensor is read as a number"):
            calque.lower(calque.trace(lambda x, k: x[k], torch.ones(2, 2), index))


def stale_by_a_write(table: Tensor, k: Tensor) -> Any:
    made = table.clone()
    row = made[k]
    made.mul_(2)
    return row


def stale_by_a_layer(table: Tensor, k: Tensor) -> Any:
    made = table.clone()
    row = made.view(-1)[k]
    torch.nn.ReLU(inplace=True)(made)
    return row


@pytest.mark.parametrize("program", [stale_by_a_write, stale_by_a_layer])
def test_a_part_at_such_an_index_is_not_used_after_another_write(program: Any) -> None:
    graph = calque.trace(program, torch.ones(2, 2), torch.tensor(1))
    with pytest.raises(calque.TraceError, match="used by its part at an index") as caught:
        calque.lower(graph)
    assert program.__name__ in str(caught.value.__notes__)
