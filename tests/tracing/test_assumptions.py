"""What a trace takes for granted, of its inputs and of PyTorch: the graph checks it."""

import collections
import contextlib
import dataclasses
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import calque
from calque import TraceError
from calque.tracing import lower

X = torch.arange(6.0).reshape(2, 3)


def leaf() -> torch.Tensor:
    return X.clone().requires_grad_()


# the condition, an input with the same answer as the example, and one with a different answer
QUESTIONS: list[tuple[Callable[[torch.Tensor], bool], Any, Any]] = [
    (lambda x: x.requires_grad, X + 1, leaf()),
    (lambda x: x.is_leaf, X + 1, leaf() * 2),
    (lambda x: (x * 2).requires_grad, X + 1, leaf()),
    (lambda x: x.is_contiguous(), X + 1, torch.ones(3, 2).t()),
    (lambda x: x.stride(0) == 3, X + 1, torch.ones(3, 2).t()),
    (lambda x: x.storage_offset() == 0, X + 1, torch.ones(3, 3)[1:]),
    (lambda x: x.shape[0] == 2, X + 1, torch.ones(4, 3)),
]


@pytest.mark.parametrize(("question", "alike", "other"), QUESTIONS)
def test_an_answer_of_the_example_is_checked(question: Any, alike: Any, other: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if question(x) else x * 3

    graph = calque.trace(f, X)
    torch.testing.assert_close(graph(alike), f(alike))
    with pytest.raises(TraceError, match="the program reads it"):
        graph(other)


def test_what_is_changed_in_place_was_checked_as_it_came() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.t_()
        return x * x.shape[0]

    assert calque.trace(f, X.clone())(X.clone()).tolist() == f(X.clone()).tolist()


def test_whether_a_parameter_is_trained_is_checked() -> None:
    class Frozen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight if self.weight.requires_grad else x

    model = Frozen()
    graph = calque.trace(model, X)
    torch.testing.assert_close(graph(X), model(X))
    model.weight.requires_grad_(False)
    with pytest.raises(TraceError, match=r"traced with weight.requires_grad = True"):
        graph(X)


class Asks(torch.nn.Module):
    """Multiplies by two or by five, as a question about its layer, or what it computes, decides."""

    def __init__(self, question: Callable[[torch.nn.Linear, torch.Tensor], bool]) -> None:
        super().__init__()
        self.layer, self.question = torch.nn.Linear(3, 3), question

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2 if self.question(self.layer, x) else 5)


def _written(layer: torch.nn.Linear, x: torch.Tensor) -> bool:
    made = torch.zeros(3)
    made[:2] = layer.bias[:2]
    return made.requires_grad


def _frozen(model: Asks) -> None:
    model.layer.requires_grad_(False)


def _laid_out_anew(model: Asks) -> None:
    model.layer.weight.data = torch.randn(3, 3).t()


OF_PARAMETERS = {
    "parameters": (lambda layer, x: any(p.requires_grad for p in layer.parameters()), _frozen),
    "next": (lambda layer, x: next(layer.parameters()).requires_grad, _frozen),
    "dict": (lambda layer, x: layer._parameters["bias"].requires_grad, _frozen),
    "computed": (lambda layer, x: layer(x).requires_grad, _frozen),
    "product": (lambda layer, x: (layer.bias * x).requires_grad, _frozen),
    "leaf": (lambda layer, x: not (layer.bias + 1).is_leaf, _frozen),
    "written": (_written, _frozen),
    "dtype": (lambda layer, x: layer.weight.dtype == torch.float32, Asks.double),
    "type": (lambda layer, x: layer.weight.type() == "torch.FloatTensor", Asks.double),
    "dtype of any": (
        lambda layer, x: all(p.dtype == torch.float32 for p in layer.parameters()),
        Asks.double,
    ),
    "dtype of a product": (lambda layer, x: (layer.bias * 1).dtype == torch.float32, Asks.double),
    "dtype with an input": (lambda layer, x: (x + layer.bias).dtype == torch.float32, Asks.double),
    "floating": (lambda layer, x: (layer.bias * 1).element_size() == 4, Asks.double),
    "strides of a product": (
        lambda layer, x: (layer.weight * 1).is_contiguous(),
        _laid_out_anew,
    ),
    "contiguous": (lambda layer, x: next(layer.parameters()).is_contiguous(), _laid_out_anew),
}


@pytest.mark.parametrize("name", OF_PARAMETERS)
def test_what_is_asked_of_parameters_and_what_they_give_is_checked(name: str) -> None:
    question, change = OF_PARAMETERS[name]
    model = Asks(question)
    graph = calque.trace(model, X)
    assert graph(X).tolist() == model(X).tolist() == (X * 2).tolist()
    change(model)
    change(graph) if change is Asks.double else None
    with pytest.raises(TraceError, match="the program reads it"):
        graph(X)


def test_whether_a_written_tensor_requires_grad_depends_on_an_input() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(4, 2, 3)
        made[0].copy_(x)
        return x * (2 if made.requires_grad else 5)

    graph = calque.trace(f, X)
    assert graph(X).tolist() == (X * 5).tolist()
    with pytest.raises(TraceError, match="requires_grad = False, called with True"):
        graph(X.clone().requires_grad_())


def _steps(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    parameters = list(layer.parameters())
    for each, gradient in zip(parameters, torch.autograd.grad(layer(x).sum(), parameters)):
        each.grad = gradient
    torch.optim.SGD(parameters, 0.1).step()
    return x


EACH_RUN = {
    "gradient": lambda layer, x: x * sum(p.grad is None for p in layer.parameters()),
    "optimizer": _steps,
    "version": lambda layer, x: x * next(layer.parameters())._version,
    "text": lambda layer, x: x * len(repr(next(layer.parameters()))),
}


@pytest.mark.parametrize("name", EACH_RUN)
def test_what_differs_in_each_run_is_not_asked_of_parameters(name: str) -> None:
    layer = torch.nn.Linear(3, 3)
    with pytest.raises(TraceError, match=r"weight|parameter"):
        calque.trace(lambda x: EACH_RUN[name](layer, x), X)


@contextlib.contextmanager
def doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


SETTINGS = [
    (lambda: torch.get_default_dtype() == torch.float32, doubles),
    (lambda: not torch.is_autocast_enabled("cpu"), lambda: torch.autocast("cpu")),
]


@pytest.mark.parametrize(("question", "block"), SETTINGS)
def test_a_setting_that_the_program_asks_for_is_checked(question: Any, block: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if question() else x * 3

    for graph in (calque.trace(f, X), calque.trace(calque.trace(f, X), X)):
        torch.testing.assert_close(graph(X), X * 2)
        with block(), pytest.raises(TraceError, match="was traced and read it"):
            graph(X)


def test_whether_gradients_are_on_goes_both_ways() -> None:
    def f(x: torch.Tensor, asked: int) -> torch.Tensor:
        for _ in range(asked):
            x = x * 2 if torch.is_grad_enabled() else x * 3
            x.add_(1)
        return x

    graph = calque.trace(f, X, 10)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            torch.testing.assert_close(graph(X, 10), f(X, 10))


def test_what_does_not_depend_on_gradients_has_no_choice() -> None:
    graph = calque.trace(lambda x: x.cos() if torch.is_grad_enabled() and x is None else x.sin(), X)
    assert [n.op for n in graph.graph.nodes] == ["placeholder", "call_method", "output"]


def test_a_setting_of_the_programs_own_is_none_of_the_callers() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x * 2 if torch.is_grad_enabled() else x * 3

    graph = calque.trace(f, X)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            torch.testing.assert_close(graph(X), X * 3)


def test_a_lowered_graph_checks_settings_too() -> None:
    graph = lower(calque.trace(lambda x: x * 2 if torch.is_grad_enabled() else x, X))
    with torch.no_grad(), pytest.raises(TraceError, match="was traced and read it"):
        graph(X)


def test_a_seed_is_set_at_each_run() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        return x + torch.rand(3)

    before = torch.get_rng_state()
    graph = calque.trace(f, X)
    assert torch.equal(torch.get_rng_state(), before)
    assert graph(X).tolist() == graph(X).tolist() == f(X).tolist()


RANDOM = {
    "random.random draws": lambda x: x * random.random(),
    "numpy.random.rand draws": lambda x: x * np.random.rand(),
    "a torch.Generator is created": lambda x: torch.rand(3, generator=torch.Generator()) + x,
}


@pytest.mark.parametrize("what", RANDOM)
def test_random_numbers_that_would_be_drawn_once_are_refused(what: str) -> None:
    states = random.getstate(), torch.get_rng_state()
    with pytest.raises(TraceError, match=what):
        calque.trace(RANDOM[what], X)
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert isinstance(torch.Generator(), torch.Generator)


def test_a_generator_from_outside_goes_on() -> None:
    generator = torch.Generator()

    def f(x: torch.Tensor) -> torch.Tensor:
        assert isinstance(generator, torch.Generator)
        return x + torch.rand(3, generator=generator)

    graph = calque.trace(f, X)
    found = [program(X).tolist() for program in (graph, graph, f)]
    generator.manual_seed(0)
    generator.manual_seed(generator.initial_seed())
    assert found[0] != found[1] != found[2]


def swallows(x: torch.Tensor) -> torch.Tensor:
    try:
        factor = int(x.sum())
    except Exception:
        factor = 0
    return x * factor


def turns_into_another(x: torch.Tensor) -> torch.Tensor:
    try:
        return x * float(x.sum())
    except ValueError as error:
        raise KeyError("no number") from error


@pytest.mark.parametrize("f", [swallows, turns_into_another])
def test_a_refusal_that_the_program_catches_is_raised_all_the_same(f: Any) -> None:
    with pytest.raises(TraceError, match="is turned into a number"):
        calque.trace(f, X)


AUTOGRAD = {
    "has its .grad read": lambda x: x if x.grad is None else x * x.grad,
    "is differentiated into .grad": lambda x: (x * x).sum().backward(),
    "gets a hook": lambda x: (x * 2).register_hook(lambda g: g),
    "takes functions": lambda x: torch.func.grad(lambda t: (t**3).sum())(x),
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("what", AUTOGRAD)
def test_what_autograd_alone_knows_is_refused(what: str, known: bool) -> None:
    with pytest.raises(TraceError, match=what):
        calque.trace(AUTOGRAD[what], X) if known else calque.symbolic_trace(AUTOGRAD[what])


# Arguments


@dataclasses.dataclass(frozen=True)
class Batch:
    data: torch.Tensor
    scale: int = 2


def test_a_data_class_is_taken_apart() -> None:
    def f(batch: Batch) -> torch.Tensor:
        return batch.data * batch.scale if batch.data.sum() > 0 else -batch.data

    graph = calque.trace(f, Batch(X))
    for data in (X + 1, -X):
        torch.testing.assert_close(graph(Batch(data)), f(Batch(data)))
    with pytest.raises(TraceError, match=r"traced with batch.scale=2, called with batch.scale=3"):
        graph(Batch(X, 3))


def test_what_the_program_writes_into_a_data_class_is_written() -> None:
    @dataclasses.dataclass
    class State:
        total: torch.Tensor

    def f(state: State, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            state.total = state.total + x
        return state.total * 2

    graph = calque.trace(f, State(X), X)
    for x in (X, -X):
        ours, theirs = State(X), State(X)
        torch.testing.assert_close(graph(ours, x), f(theirs, x))
        torch.testing.assert_close(ours.total, theirs.total)


def test_a_dictionary_keeps_its_class() -> None:
    def f(d: Any) -> torch.Tensor:
        d.move_to_end("a")
        return next(iter(d.values())) * 2

    graph = calque.trace(f, collections.OrderedDict(a=X, b=X + 1))
    torch.testing.assert_close(graph(collections.OrderedDict(a=-X, b=X + 5)), (X + 5) * 2)


def test_an_object_with_tensors_inside_is_refused() -> None:
    class Cache:
        def __init__(self) -> None:
            self.keys = [X]

    with pytest.raises(
        TraceError, match="the argument cache is a Cache, an object that contains tensors"
    ):
        calque.trace(lambda cache: cache.keys[0] * 2, Cache())


@pytest.mark.parametrize("known", [True, False])
def test_a_tensor_may_be_a_default(known: bool) -> None:
    weight = torch.ones(3)

    def f(x: torch.Tensor, w: torch.Tensor = weight) -> torch.Tensor:
        return x * w

    graph = calque.trace(f, X) if known else calque.symbolic_trace(f)
    for args in ((X,), (X, X), (X, weight * 2)):
        torch.testing.assert_close(graph(*args), f(*args))
    weight.fill_(5)
    torch.testing.assert_close(graph(X), f(X))


def test_more_or_fewer_arguments_are_refused() -> None:
    graph = calque.trace(lambda *xs: sum(xs), X, X)
    for given in ((X,), (X, X, X)):
        with pytest.raises(TraceError, match=r"traced with 2 parts in \*xs"):
            graph(*given)


def test_a_tensor_that_may_be_left_out_is_given_again():
    """The program may ask `mask is None`, which no tracer sees."""

    def attend(x, mask=None):
        if mask is None:
            x = x * 2
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    x, mask = torch.ones(1, 2, 2), torch.zeros(2, 2)
    graph = calque.trace(attend, x, mask)
    assert torch.equal(graph(x, mask), attend(x, mask))
    for left_out in ((x,), (x, None)):
        with pytest.raises(calque.TraceError, match=r"a tensor for mask, called with None"):
            graph(*left_out)


@pytest.mark.parametrize(
    "name", [name for name in OF_PARAMETERS if "type" in name or "of a" in name]
)
def test_recordings_check_what_is_asked_of_parameters_and_what_they_give(name: str) -> None:
    question, change = OF_PARAMETERS[name]
    model = Asks(question)
    recording = calque.record(model, X)
    graph = recording.graph()
    assert graph(X).tolist() == model(X).tolist() == (X * 2).tolist()
    change(model)
    change(graph) if change is Asks.double else None
    with pytest.raises(TraceError, match="the program reads it|when this was recorded"):
        graph(X)


def test_what_requires_grad_after_a_write_is_asked_again() -> None:
    def forward(layer: torch.nn.Linear, x: torch.Tensor) -> bool:
        made = torch.zeros(3)
        first = made.requires_grad
        made.add_(layer.bias)
        return first or not made.requires_grad

    model = Asks(forward)
    _frozen(model)
    graph = calque.trace(model, X)
    assert graph(X).tolist() == model(X).tolist() == (X * 2).tolist()
    model.layer.requires_grad_()
    assert model(X).tolist() == (X * 5).tolist()
    with pytest.raises(TraceError, match="the program reads it"):
        graph(X)


def test_neighbouring_questions_are_one_check() -> None:
    def forward(layer: torch.nn.Linear, x: torch.Tensor) -> Any:
        y = layer(x)
        return (y + torch.ones(3, dtype=y.dtype, device=y.device)).any()

    model = Asks(forward)
    graph = calque.trace(model, X)
    found = [node for node in graph.graph.nodes if "expect_tensor" in node.name]
    assert len([node for node in found if node.args[0].op != "placeholder"]) == 1
    torch.testing.assert_close(graph(X), model(X))


def test_what_requires_grad_within_no_grad_is_none_of_the_callers() -> None:
    def question(layer: torch.nn.Linear, x: torch.Tensor) -> bool:
        with torch.no_grad():
            return not (layer.bias * 1).requires_grad

    graph = calque.trace(Asks(question), X)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            assert graph(X).tolist() == (X * 2).tolist()


class Written(torch.nn.Module):
    """Asks a tensor before and after gradients are written into it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x)
        before = total.requires_grad
        total[0] = (x[0] * self.weight).mean()
        return total * (1 + before * 2 + total.requires_grad * 4)


def test_an_unpickled_graph_asks_where_the_program_did() -> None:
    program = Written()
    graph = calque.symbolic_trace(program)
    again = pickle.loads(pickle.dumps(graph))
    for traced in (graph, again, pickle.loads(pickle.dumps(again))):
        assert torch.equal(traced(X), program(X))


def test_questions_leave_nothing_in_a_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x[: len(x) - 1] + torch.arange(len(x) - 1, dtype=x.dtype)[:, None]

    graph = calque.trace(f, X.reshape(-1, 1))
    assert not list(graph.buffers())
    torch.testing.assert_close(graph(X.reshape(-1, 1)), f(X.reshape(-1, 1)))
