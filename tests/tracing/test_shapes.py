"""With example inputs, what depends on shapes and dtypes is decided while tracing."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import calque
from calque import TraceError
from calque.tracing.abstract import memory
from calque.tracing.abstract.fakes import AbstractMode

X = torch.arange(12.0).reshape(3, 4)


def by_rank(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1) if x.ndim == 2 else x


def by_dtype(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.dtype == torch.float32 else x


def by_device(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.device.type == "cpu" and not x.is_cuda else x


def rows(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape[1])
    for i in range(x.size(0)):
        total = total + x[i] * i
    return total


def iterated(x: torch.Tensor) -> torch.Tensor:
    return sum((row * len(x) for row in x), torch.zeros(len(x[0])))


def unpacked(x: torch.Tensor) -> torch.Tensor:
    a, b, c = x
    height, width = x.shape
    return a * height + b * width + c


def largest(x: torch.Tensor) -> torch.Tensor:
    values, indices = x.max(dim=0)
    return values + x.max(dim=1).values.sum() + indices + torch.topk(x, 2).values.sum()


def halves(x: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=1)
    return torch.cat([part.relu() for part in torch.split(left * right, 1)])


def made_like(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.numel(), dtype=x.dtype).view_as(x) + torch.full(x.shape, 2.0)


def of_a_result(x: torch.Tensor) -> torch.Tensor:
    y = x @ x.t()
    return y.reshape(y.shape[0] * y.shape[1], -1) if y.is_floating_point() else y


PROGRAMS = [
    by_rank,
    by_dtype,
    by_device,
    rows,
    iterated,
    unpacked,
    largest,
    halves,
    made_like,
    of_a_result,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_program_that_asks_for_shapes_is_traced(program: Callable) -> None:
    graph = calque.trace(program, X)
    graph.graph.lint()
    fresh = torch.randn(3, 4)
    torch.testing.assert_close(graph(fresh), program(fresh))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_the_graph_carries_the_abstract_value_of_each_node(program: Callable) -> None:
    graph = calque.trace(program, X)
    expected = program(X)
    value = graph.graph.output_node().args[0].meta["val"]
    assert (value.shape, value.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize(
    ("program", "other", "what"),
    [
        (rows, torch.ones(2, 4), "shape"),
        (by_rank, torch.ones(3), "ndim"),
        (by_dtype, X.double(), "dtype"),
        (by_device, X.to("meta"), "device"),
    ],
)
def test_another_shape_than_was_asked_for_is_refused(
    program: Callable, other: torch.Tensor, what: str
) -> None:
    with pytest.raises(TraceError, match=rf"traced with x\.{what} = "):
        calque.trace(program, X)(other)


def test_a_program_that_does_not_ask_runs_with_any_shape() -> None:
    graph = calque.trace(lambda x: x.relu() + 1, X)
    torch.testing.assert_close(graph(torch.ones(7)), torch.full((7,), 2.0))


def test_asking_for_the_rank_leaves_the_sizes_free() -> None:
    graph = calque.trace(by_rank, X)
    torch.testing.assert_close(graph(torch.ones(7, 2)), torch.full((7,), 2.0))


def test_shapes_of_parameters_are_known_without_examples() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight if self.weight.shape[0] == 4 else x

    graph = calque.symbolic_trace(Model())
    torch.testing.assert_close(graph(torch.ones(9, 4)), torch.ones(9, 4))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (({"a": X, "b": [X, X]},), {}),
        (((X, (X, 3)),), {}),
        ((X, X), {"scale": 2}),
        ((X,), {"scale": 2, "more": X}),
    ],
)
def test_examples_may_be_containers(args: tuple, kwargs: dict[str, Any]) -> None:
    def f(first: Any, *rest: torch.Tensor, scale: int = 1, **more: torch.Tensor) -> torch.Tensor:
        leaves = torch.utils._pytree.tree_leaves((first, rest, more))
        return sum(leaf * scale for leaf in leaves)

    graph = calque.trace(f, *args, **kwargs)
    torch.testing.assert_close(graph(*args, **kwargs), f(*args, **kwargs))


def test_a_container_of_another_length_is_refused() -> None:
    graph = calque.trace(lambda parts: torch.cat(parts), [X, X])
    with pytest.raises(TraceError, match="2 parts in parts, called with 3"):
        graph([X, X, X])


def test_a_shape_inside_a_container_is_checked() -> None:
    graph = calque.trace(lambda d: d["a"].view(d["a"].shape[0], -1), {"a": X})
    with pytest.raises(TraceError, match=r"d\['a'\]\.shape"):
        graph({"a": torch.ones(2, 2)})


def test_a_value_that_is_no_tensor_is_checked() -> None:
    graph = calque.trace(lambda x, n: x * n, X, 3)
    torch.testing.assert_close(graph(X, 3), X * 3)
    with pytest.raises(TraceError, match="n=3, called with n=4"):
        graph(X, 4)


def test_what_depends_on_data_stays_unknown() -> None:
    graph = calque.trace(lambda x: x[x > 3].sum() + x.sum().item(), X)
    torch.testing.assert_close(graph(X + 1), (X + 1)[X + 1 > 3].sum() + (X + 1).sum())


def test_a_bound_method_of_a_module_is_traced() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 2)

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).view(x.shape[0], 2, 1)

    model = Model()
    torch.testing.assert_close(calque.trace(model.encode, X)(X), model.encode(X))


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(TraceError, match="not callable"):
        calque.trace(3, X)


def test_tracing_draws_no_random_numbers_and_changes_no_buffer() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    state, mean = torch.random.get_rng_state(), model[0].running_mean.clone()
    calque.trace(model, X)
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(mean, model[0].running_mean)
    assert model[0].num_batches_tracked == 0


def test_a_decorated_function_keeps_its_kinds_of_parameters() -> None:
    def decorated(f: Callable) -> Callable:
        @functools.wraps(f)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop("unused", None)
            return f(*args, **kwargs)

        return wrapper

    @decorated
    def f(x: torch.Tensor, *rest: torch.Tensor, scale: int = 2, **more: torch.Tensor) -> Any:
        return x * scale + sum(rest) + more["shift"]

    graph = calque.trace(f, X, X, X, shift=X)
    torch.testing.assert_close(graph(X, X, X, shift=X), X * 5)


def test_what_a_model_of_the_same_layers_showed_is_remembered(monkeypatch):
    def model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())

    def shapes(graph) -> list[torch.Size]:
        return [node.meta["val"].shape for node in graph.graph.nodes if node.op != "output"]

    image, calls = torch.randn(2, 3, 6, 6), []
    memory.forget()
    first = calque.trace(model().eval(), image)
    dispatch = AbstractMode.__torch_dispatch__
    # as a part of PyTorch, because changes to a list of a traced program are undone
    names = {"__name__": "torch", "calls": calls, "dispatch": dispatch}
    exec("def count(*args): calls.append(args[1]); return dispatch(*args)", names)
    monkeypatch.setattr(AbstractMode, "__torch_dispatch__", names["count"])
    second = calque.trace(model().eval(), image)
    asked = len(calls)
    memory.forget()
    third = calque.trace(model().eval(), image)
    assert shapes(first) == shapes(second) == shapes(third)
    assert asked * 2 < len(calls) - asked
    with pytest.raises(RuntimeError):
        calque.trace(model().eval(), torch.randn(2, 5, 6, 6))


def test_gradients_of_values_that_are_alike():
    def f(x, y):
        a, b = x.detach().requires_grad_(), y.detach().requires_grad_()
        (of_a,) = torch.autograd.grad((a**3).sum(), a)
        (of_b,) = torch.autograd.grad((b**3).sum(), b)
        return of_a.reshape(-1), of_b + b.detach()

    one, two = torch.ones(2, 3), torch.full((2, 3), 2.0)
    for _ in range(2):
        graph = calque.trace(f, one, two)
        torch.testing.assert_close(graph(two, one), f(two, one))
        assert [n.meta["val"].shape for n in graph.graph.output_node().args[0]] == [(6,), (2, 3)]


def test_an_example_with_a_graph_gives_no_warning() -> None:
    x = torch.ones(3, requires_grad=True) * 2  # warnings are errors here
    graph = calque.trace(lambda x: x * 2, x)
    assert calque.lower(graph)(x).tolist() == graph(x).tolist() == [4, 4, 4]
