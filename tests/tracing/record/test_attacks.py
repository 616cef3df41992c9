"""Programs that graphs were wrong about, or failed on: replayed on other data, and unpickled."""

import copy
import dataclasses
import functools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calque


@dataclasses.dataclass
class Initialized:
    """Sets itself up when it is made."""

    value: Tensor
    doubled: Any = dataclasses.field(init=False, default=None)

    def __post_init__(self) -> None:
        self.doubled = self.value * 2


@dataclasses.dataclass(slots=True)
class Slotted:
    value: Tensor
    more: list[Tensor]


class Held:
    def __init__(self, value: Tensor) -> None:
        self.value = value


class Scales:
    """An object that can be called."""

    def __init__(self) -> None:
        self.weight = torch.full((3,), 2.0)

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.weight

    def twice(self, x: Tensor) -> Tensor:
        return self(self(x))


class CallsItself(nn.Module):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) * 2

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_forward_hook(_doubled)
        self.register_forward_pre_hook(_moved)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def _doubled(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return result * 2


def _moved(module: nn.Module, args: Any) -> Any:
    return (args[0] + 1,)


class Packs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(1, 4)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_sequence([x[:, None], x[:2, None]])
        return self.gru(packed)[0].data


def initialized(x: Tensor) -> Initialized:
    return Initialized(x + 1)


def slotted(x: Tensor) -> Slotted:
    return Slotted(x + 1, [x * 2])


def held(x: Tensor) -> Held:
    return Held(x * 2)


def local_data_class(x: Tensor) -> Any:
    @dataclasses.dataclass
    class Local:
        value: Tensor

    return Local(x * 3).value


def copied(x: Tensor) -> Tensor:
    return copy.deepcopy(x) + 1


def makes_parameters(x: Tensor) -> Tensor:
    weight = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        ((weight - x) ** 2).sum().backward()
        optimizer.step()
    return weight.detach()


def positions(x: Tensor) -> Any:
    return torch.where(x * 0 == 0)


PROGRAMS: dict[str, Any] = {
    "an object": Scales,
    "a bound method": lambda: Scales().twice,
    "a partial": lambda: functools.partial(torch.add, alpha=2.0, other=torch.ones(3)),
    **{kind.__name__: kind for kind in (CallsItself, Hooked, Packs)},
    **{
        function.__name__: (lambda function=function: function)
        for function in (initialized, slotted, held, local_data_class, copied, positions)
    },
}
TRACERS: dict[str, Any] = {
    "function": lambda program, x: calque.record(program, x).graph(),
    "module": lambda program, x: calque.record(program, x).graph("module"),
    "aten": lambda program, x: calque.record(program, x).graph("aten"),
    "trace": calque.trace,
}
REFUSED = {("Packs", "aten"), ("positions", "aten")}


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        held = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {"class": hash(type(value)), **held}
    return value.value if isinstance(value, Held) else value


@pytest.mark.sampled(24)
@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_does_what_the_program_does_and_so_does_its_copy(name: str, tracer: str) -> None:
    program = PROGRAMS[name]()
    if (name, tracer) in REFUSED:
        with pytest.raises(calque.TraceError):
            TRACERS[tracer](program, torch.randn(3))
        return
    graph = TRACERS[tracer](program, torch.randn(3))
    for each in (graph, copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        x = torch.randn(3)
        torch.testing.assert_close(plain(each(x)), plain(program(x)))


@pytest.mark.parametrize("level", ["function", "module"])
def test_parameters_that_the_program_makes_are_made_again(level: Any) -> None:
    graph = calque.record(makes_parameters, torch.randn(3)).graph(level)
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(graph(x), makes_parameters(x), rtol=0, atol=0)


def test_what_has_no_operators_is_refused_at_its_line() -> None:
    with pytest.raises(calque.TraceError, match=r"test_attacks\.py|operators"):
        calque.record(makes_parameters, torch.randn(3)).graph("aten")


def with_another_default(x: Tensor) -> Tensor:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    y = torch.ones(3) + x
    torch.set_default_dtype(before)
    return y


class Swaps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.a, self.b = self.b, self.a
        return self.a(x) - self.b(x)


class CountsCalls:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class KeepsByAHook(nn.Module):
    """A layer's hook keeps what the program then reads; a leaf would hide that."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.features = {"relu": torch.zeros(3)}
        self.body[1].register_forward_hook(self.keep)

    def keep(self, module: nn.Module, args: Any, result: Tensor) -> None:
        self.features["relu"] = result

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.features["relu"]


def writes_sparse(x: Tensor) -> Tensor:
    return (x * 2).to_dense()


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize(
    "make", [lambda: with_another_default, Swaps, CountsCalls], ids=["dtype", "swap", "count"]
)
def test_what_a_graph_would_not_repeat_is_refused(make: Any, tracer: str) -> None:
    with pytest.raises(calque.TraceError):
        TRACERS[tracer](make(), torch.ones(3))
    assert torch.get_default_dtype() is torch.float32


def test_trace_follows_a_leaf_with_a_hook() -> None:
    with pytest.raises(calque.TraceError, match=r"self\.features\['relu'\]"):
        calque.trace(KeepsByAHook(), torch.ones(3))


@pytest.mark.parametrize("tracer", TRACERS)
def test_sparse_arguments_are_refused(tracer: str) -> None:
    with pytest.raises(calque.TraceError, match="layout torch.sparse_coo"):
        TRACERS[tracer](writes_sparse, torch.ones(3).to_sparse())


def test_a_size_that_is_an_argument_is_that_size_again() -> None:
    def program(x: Tensor, size: Any) -> Tensor:
        return x.reshape(size)

    size = torch.Size([3, 1])
    for graph in (
        calque.record(program, torch.ones(3), size).graph(),
        calque.trace(program, torch.ones(3), size),
    ):
        assert graph(torch.ones(3), size).shape == size
        with pytest.raises(calque.TraceError, match="traced with size"):
            graph(torch.ones(3), torch.Size([1, 3]))


def test_a_parameter_that_is_made_inside_is_lowered_and_shares_memory() -> None:
    def program(x: Tensor) -> Any:
        y = x.clone()
        parameter = nn.Parameter(y, requires_grad=False)
        parameter.mul_(2)
        return parameter + 1, y

    lowered = calque.record(program, torch.randn(3)).graph("aten")
    x = torch.randn(3)
    torch.testing.assert_close(lowered(x), program(x))


last: Any = None


def test_a_global_variable_is_not_assigned_by_a_graph() -> None:
    def program(x: Tensor) -> Tensor:
        global last
        last = x * 2
        return last + 1

    program(torch.ones(2))
    with pytest.raises(calque.TraceError, match="last"):
        calque.record(program, torch.ones(2)).graph()


@torch.jit.script
def _by_size(x: Tensor) -> Tensor:
    y = x.new_zeros(x.size(0))
    for i in range(x.size(0)):
        y[i] = x[i] * i
    return y


def _in_vmap(x: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: row * row.shape[0])(x)


def _of_a_closure(x: Tensor) -> Tensor:
    found = x[x > 0]
    return torch.func.vmap(lambda row: row * found.numel())(x)


@pytest.mark.parametrize(
    ("program", "first", "other"),
    [
        (_by_size, torch.ones(3), torch.ones(5)),
        (_in_vmap, torch.ones(2, 3), torch.ones(2, 4)),
        (_of_a_closure, torch.tensor([1.0, -1.0]), torch.ones(2)),
    ],
)
def test_shapes_that_no_mode_sees_asked_for_are_checked(
    program: Any, first: Tensor, other: Tensor
) -> None:
    graph = calque.record(program, first).graph()
    assert torch.equal(graph(first), program(first))
    with pytest.raises(calque.TraceError, match="shape"):
        graph(other)


class _Scripts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer: Any = torch.jit.trace(nn.Linear(3, 3), torch.ones(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_methods_that_a_scripted_module_looks_up_are_no_change() -> None:
    model, x = _Scripts(), torch.randn(2, 3)
    graph = calque.record(model, x).graph()
    assert torch.equal(graph(x + 1), model(x + 1))


def _backward(x: Tensor) -> Tensor:
    y = x.detach().requires_grad_()
    y.register_hook(lambda gradient: gradient * 3)
    (y * y).sum().backward()
    assert y.grad is not None
    return y.grad


def _reads_in_a_hook(x: Tensor) -> Tensor:
    y, seen = x.detach().requires_grad_(), x * 2
    y.register_hook(lambda gradient: gradient * seen.sum().item())
    return torch.autograd.grad((y * y).sum(), y)[0]


def test_what_threads_of_autograd_do_is_no_call_of_the_program() -> None:
    x = torch.tensor([1.0, 2.0], device="jax")
    graph = calque.record(_backward, x).graph()
    assert graph(x + 1).tolist() == [12.0, 18.0]
    recording = calque.record(_reads_in_a_hook, x)
    with pytest.raises(calque.TraceError, match="contains tensors of the run"):
        recording.graph()


@dataclasses.dataclass(frozen=True)
class _Batch:
    ids: Tensor
    more: dict[str, Any]
    count: int = 2


def test_operators_of_a_program_that_takes_a_data_class() -> None:
    def program(batch: _Batch) -> Tensor:
        return batch.ids * batch.count + batch.more["x"][0]

    first, other = (_Batch(torch.randn(3), {"x": (torch.randn(3),)}) for _ in range(2))
    graph = calque.record(program, first).graph("aten")
    torch.testing.assert_close(graph(other), program(other))
    with pytest.raises(calque.TraceError, match="count"):
        graph(dataclasses.replace(other, count=3))


def test_a_write_to_tensors_in_a_list_is_no_dead_code() -> None:
    def program(x: Tensor) -> Tensor:
        y = x.clone()
        torch._foreach_mul_([y], 2.0)
        return y

    for graph in (
        calque.trace(program, torch.ones(2)),
        calque.record(program, torch.ones(2)).graph(),
    ):
        graph.graph.eliminate_dead_code()
        graph.recompile()
        assert graph(torch.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("foreach", [False, True])  # which has a block within the step
@pytest.mark.parametrize("autocast", [False, True])
def test_a_guard_that_raises_in_an_optimizer_leaves_the_modes_as_they_were(
    autocast: bool, foreach: bool
) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    # It reads its count of steps, and the gradient mode.
    optimizer = torch.optim.Adam([weight], foreach=foreach)

    def step(x: torch.Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            (weight * x).sum().backward()
            optimizer.step()

    step(torch.ones(2))
    graph = calque.record(step, torch.ones(2)).graph()
    with pytest.raises(calque.TraceError, match="item gave"):
        graph(torch.ones(2))
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
