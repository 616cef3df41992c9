"""What torch.fx records without a word and gets wrong: right here, or an error."""

import copy
import functools
import pickle
from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import rand
from torch.nn.functional import relu as early_relu

import calque
from calque import TraceError
from tests import new_process
from tests.tracing import programs

X = torch.arange(6.0).reshape(2, 3)
WITH_AND_WITHOUT = pytest.mark.parametrize("known", [True, False], ids=["examples", "symbolic"])


def traced(f: Any, *args: Any, known: bool = True) -> Any:
    return calque.trace(f, *args) if known else calque.symbolic_trace(f)


@WITH_AND_WITHOUT
def test_random_numbers_are_drawn_at_each_run(known: bool) -> None:
    graph = traced(lambda x: torch.rand(3) + x, X, known=known)
    torch.manual_seed(1)
    first = graph(X)
    torch.manual_seed(1)
    torch.testing.assert_close(first, torch.rand(3) + X)
    assert not torch.equal(first, graph(X))


def test_early_bound_creation_functions_are_recorded() -> None:
    graph = calque.symbolic_trace(lambda x, draw=rand: early_relu(x) + rand(3))
    assert [node.op for node in graph.graph.nodes].count("call_function") >= 3
    assert not torch.equal(graph(X), graph(X))


@WITH_AND_WITHOUT
def test_an_accumulator_made_inside_starts_anew_at_each_run(known: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(3)
        for _ in range(2):
            total += x[0]
        return total

    graph = traced(f, X, known=known)
    graph(X)
    torch.testing.assert_close(graph(X), 2 * X[0])


def test_a_constant_from_an_array_is_a_new_tensor_at_each_run() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        total = torch.tensor(np.zeros(3, dtype=np.float32))
        total += x[0]
        return total

    graph = calque.symbolic_trace(f)
    graph(X)
    torch.testing.assert_close(graph(X), X[0])


@pytest.mark.parametrize("part", [lambda t: t, lambda t: t[0], lambda t: t.view(-1)])
def test_writing_to_a_tensor_that_is_no_input_is_refused(part: Callable) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        total = torch.from_numpy(np.zeros((2, 3), dtype=np.float32))
        view = part(total)
        view += x[0]
        return total

    with pytest.raises(TraceError, match="writes to a tensor"):
        calque.symbolic_trace(f)


def test_a_layer_behind_a_tensor_from_outside_may_not_write_to_it() -> None:
    class Layers(torch.nn.Module):
        def __init__(self, layer: torch.nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(OUTSIDE.view(1, 3)) + x

    model = Layers(torch.nn.Linear(3, 3))
    torch.testing.assert_close(calque.trace(model, X)(X), model(X))
    with pytest.raises(TraceError, match="neither an input nor part"):
        calque.trace(Layers(torch.nn.ReLU(inplace=True)), X)


def test_a_tensor_from_outside_may_be_all_that_is_returned() -> None:
    graph = calque.symbolic_trace(lambda x: OUTSIDE.view(1, 3))
    torch.testing.assert_close(graph(X), OUTSIDE.view(1, 3))


@WITH_AND_WITHOUT
def test_an_addition_in_place_changes_the_tensor_of_the_caller(known: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x += 1
        return x * 2

    graph = traced(f, X.clone(), known=known)
    x = X.clone()
    torch.testing.assert_close(graph(x), (X + 1) * 2)
    torch.testing.assert_close(x, X + 1)


@pytest.mark.parametrize(
    "name",
    ["iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"],
)
def test_operators_in_place_change_the_tensor_of_the_caller(name: str) -> None:
    import operator

    apply = getattr(operator, name)
    graph = calque.symbolic_trace(lambda x: apply(x, 2) + 1)
    expected, x = X.clone(), X.clone()
    apply(expected, 2)
    torch.testing.assert_close(graph(x), expected + 1)
    torch.testing.assert_close(x, expected)


def test_an_augmented_number_keeps_its_old_value_under_its_old_name() -> None:
    def f(x: torch.Tensor, n: int = 3) -> Any:
        m = n
        m += 1
        return x * n + m

    torch.testing.assert_close(calque.symbolic_trace(f)(X, 5), X * 5 + 6)


@WITH_AND_WITHOUT
def test_assignment_to_a_part_is_recorded(known: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x[0] = 7
        return x.sum()

    x = X.clone()
    assert traced(f, X.clone(), known=known)(x) == 7 * 3 + 12
    assert x[0].tolist() == [7, 7, 7]


def test_dead_nodes_with_an_effect_are_kept() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x += 1
        F.relu_(x)
        torch.add(x, 1, out=x)
        x.neg()
        return torch.ones(2)

    for change in (lambda g: g, copy.deepcopy):
        graph = change(calque.symbolic_trace(f))
        graph.graph.eliminate_dead_code()
        graph.recompile()
        assert "neg" not in [node.target for node in graph.graph.nodes]
        x = X.clone()
        graph(x)
        torch.testing.assert_close(x, X + 3)


def test_a_proxy_is_a_tensor() -> None:
    def f(x: Any) -> Any:
        return x + 1 if isinstance(x, torch.Tensor) and not isinstance(x, (int, tuple)) else x - 1

    torch.testing.assert_close(calque.symbolic_trace(f)(X), X + 1)


def test_a_proxy_has_the_attributes_of_a_tensor_and_no_others() -> None:
    def f(x: Any) -> Any:
        assert not hasattr(x, "bananas")
        assert not hasattr(x, "keys")
        assert hasattr(x, "flatten")
        return x

    calque.symbolic_trace(f)
    with pytest.raises(AttributeError, match="bananas"):
        calque.symbolic_trace(lambda x: x.bananas())


def test_methods_through_the_class_are_recorded() -> None:
    graph = calque.symbolic_trace(lambda x: torch.Tensor.flatten(torch.Tensor.add(x, 1)))
    torch.testing.assert_close(graph(X), (X + 1).flatten())


def test_wrong_shapes_raise_while_tracing_as_pytorch_does() -> None:
    with pytest.raises(RuntimeError, match="reduction dim") as caught:
        calque.trace(lambda x: x @ torch.ones(4, 4), X)
    assert __file__ in "".join(caught.value.__notes__)


def test_setting_the_data_of_a_tensor_is_recorded() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.data = x + 1
        return x

    x = X.clone()
    calque.symbolic_trace(f)(x)
    torch.testing.assert_close(x, X + 1)


class Modal(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.inner(x), 0.5, self.training)


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Modal()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x) + 1


@pytest.mark.parametrize("make", [Modal, Outer])
@pytest.mark.parametrize(
    "change",
    [lambda g: g, copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g)), calque.symbolic_trace],
    ids=["itself", "deepcopy", "pickle", "traced again"],
)
def test_a_graph_of_one_mode_refuses_to_run_in_the_other(make: Any, change: Callable) -> None:
    graph = change(calque.trace(make().eval(), X))
    graph(X)
    graph.train()
    with pytest.raises(TraceError, match="traced in evaluation mode"):
        graph(X)
    graph.eval()
    graph(X)


def test_leaf_modules_follow_the_mode() -> None:
    graph = calque.symbolic_trace(torch.nn.Sequential(torch.nn.Dropout(0.5)))
    torch.testing.assert_close(graph.eval()(X), X)
    assert not torch.equal(graph.train()(X + 1), X + 1)


@WITH_AND_WITHOUT
def test_an_optional_argument_is_checked_when_the_graph_runs(known: bool) -> None:
    def f(x: torch.Tensor, mask: torch.Tensor | None = None, flag: bool = False) -> torch.Tensor:
        if mask is not None:
            x = x * mask
        return x + 1 if flag else x

    graph = traced(f, X, known=known)
    torch.testing.assert_close(graph(X), X)
    for arguments in ({"mask": X}, {"flag": True}):
        with pytest.raises(TraceError, match=next(iter(arguments))):
            graph(X, **arguments)


@WITH_AND_WITHOUT
def test_gradients_are_off_in_a_no_grad_block_only(known: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            a = x * 2
            with torch.enable_grad():
                b = x * 3
        with torch.set_grad_enabled(False):
            a = a + x
        return a * b

    graph = traced(f, X, known=known)
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    f(x).sum().backward()
    graph(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    with torch.no_grad():
        graph(X)
        assert not torch.is_grad_enabled()


def test_autocast_blocks_are_recorded() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x.t()

    graph = calque.trace(f, X)
    assert graph(X).dtype == torch.bfloat16
    assert graph.graph.output_node().args[0].meta["val"].dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


def test_inference_mode_is_refused() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return x + 1

    with pytest.raises(TraceError, match="inference_mode"):
        calque.symbolic_trace(f)


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 3


@WITH_AND_WITHOUT
def test_a_gradient_of_the_users_own_is_kept(known: bool) -> None:
    graph = traced(lambda x: Tripled.apply(x) + 1, X, known=known)
    x = X.clone().requires_grad_()
    graph(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.full_like(X, 3))


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count


@WITH_AND_WITHOUT
def test_a_buffer_changes_when_the_graph_runs_and_not_while_tracing(known: bool) -> None:
    model = Counter()
    graph = traced(model, X, known=known)
    assert model.count == 0
    graph(X)
    torch.testing.assert_close(graph(X), X * 2)
    assert model.count == 2


def test_a_python_number_that_would_change_once_is_refused() -> None:
    class Counts(torch.nn.Module):
        steps = 0

        def __init__(self) -> None:
            super().__init__()
            self.steps = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            return x * self.steps

    model = Counts()
    with pytest.raises(TraceError, match=r"self\.steps changes from 0 to 1"):
        calque.symbolic_trace(model)
    assert model.steps == 0


def test_the_users_module_gets_no_attributes() -> None:
    class Constant(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + OUTSIDE

    model = Constant()
    before = dict(vars(model))
    graph = calque.symbolic_trace(model)
    assert vars(model) == before
    torch.testing.assert_close(graph(X), X + OUTSIDE)


OUTSIDE = torch.ones(3)
LAYER = torch.nn.Linear(3, 3)


def test_modules_and_parameters_from_outside_are_found() -> None:
    graph = calque.symbolic_trace(lambda x: LAYER(x) + LAYER.weight.sum())
    torch.testing.assert_close(graph(X), LAYER(X) + LAYER.weight.sum())
    assert {id(p) for p in graph.parameters()} == {id(p) for p in LAYER.parameters()}


REFUSED = {
    "not": (lambda x: not x, "two branches differ"),
    "in": (lambda x: "3" in x, "searched"),
    "int": (lambda x: int(x), "number"),
    "float": (lambda x: float(x), "number"),
    "complex": (lambda x: complex(x), "number"),
    "index": (lambda x: [1, 2][x], "integer"),
    "f-string": (lambda x: f"{x}", "formatted"),
    "f-string with format": (lambda x: f"{x:.2f}", "formatted"),
    "str": (lambda x: str(x), "formatted"),
    "numpy": (lambda x: np.sin(x), "numpy"),
    "pickle": (lambda x: pickle.dumps(x), "pickled"),
    "range of a dimension": (lambda x: list(range(x.shape[0])), "integer"),
    "len": (lambda x: len(x), "length"),
    "iteration": (lambda x: [y for y in x], "length is not known"),  # noqa: C416
    "square root of math": (functools.partial(lambda x, f: f(x), f=sqrt), "number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_a_value_is_refused_at_the_users_line(name: str) -> None:
    f, words = REFUSED[name]

    def program(x: torch.Tensor) -> Any:
        return f(x)

    with pytest.raises(TraceError, match=words) as caught:
        calque.symbolic_trace(program)
    message = str(caught.value)
    assert __file__ in message
    assert len(message.splitlines()) <= 12


def test_divmod_and_round_of_numbers_are_recorded() -> None:
    def f(x: torch.Tensor, n: float = 7.6) -> Any:
        quotient, rest = divmod(n, 2)
        return x * quotient + rest + round(n)

    torch.testing.assert_close(calque.symbolic_trace(f)(X, 9.7), X * 4 + 1.7 + 10)


def test_divmod_of_a_tensor_raises_as_pytorch_does() -> None:
    with pytest.raises(TypeError, match="divmod"):
        divmod(X, 2)
    with pytest.raises(TypeError, match="divmod"):
        calque.symbolic_trace(lambda x: divmod(x, 2))


def test_unpacking_checks_the_number_of_parts_when_the_graph_runs() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        a, b = x
        return a + b

    graph = calque.symbolic_trace(f)
    torch.testing.assert_close(graph(X), X[0] + X[1])
    with pytest.raises(ValueError, match="too many values"):
        graph(torch.ones(3, 3))


def test_an_assertion_on_a_tensor_is_checked_when_the_graph_runs() -> None:
    graph = calque.symbolic_trace(programs.asserts_a_positive_sum)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    graph(X)
    with pytest.raises(AssertionError):
        graph(-X)


def _identities(x: torch.Tensor) -> torch.Tensor:
    y = x.contiguous()
    first = y is x
    changed = x.add_(1) is x
    others = [x.float() is y, x.clone() is x, x.detach() is x, x.view(2, 2) is x, x.t() is x]
    return torch.tensor([first, changed, *others]) * x.sum().bool()


def test_is_tells_operators_that_give_back_their_tensor() -> None:
    graph = calque.trace(_identities, torch.ones(2, 2))
    assert graph(torch.ones(2, 2)).tolist() == _identities(torch.ones(2, 2)).tolist()
    with pytest.raises(calque.TraceError, match="stride"):
        graph(torch.ones(2, 2).expand(2, 2).t())


def test_a_result_that_is_its_operand_is_computed_for_other_strides_too() -> None:
    def program(x: torch.Tensor, y: Any) -> torch.Tensor:
        z = x.t().contiguous()
        return z.view(-1) if z is not y else z

    graph = calque.trace(program, torch.ones(2, 3), None)
    assert graph(torch.arange(6.0).view(2, 3), None).tolist() == [0, 3, 1, 4, 2, 5]


def test_the_text_of_a_proxy_can_be_looked_at_but_not_read(capsys: Any) -> None:
    def shows(x: torch.Tensor) -> torch.Tensor:
        print(repr(x))
        return x

    calque.symbolic_trace(shows)
    assert capsys.readouterr().out == "TensorProxy(x)\n"
    with pytest.raises(calque.TraceError, match=r"test_no_lies.py:\d+ in .*converted to text"):
        calque.symbolic_trace(lambda x: x * 2 if "1." in repr(x) else x)


def test_nothing_of_a_trace_is_left_behind() -> None:
    program = """
import math, torch, calque
model = torch.nn.Sequential(torch.nn.Linear(3, 3))
places = (torch.nn.Module, torch.amp.autocast, torch.autograd.Function, torch.Tensor)
before = [dict(vars(place)) for place in places], dict(vars(math)), torch.random.get_rng_state()
calque.trace(model, torch.ones(3))
try:
    calque.symbolic_trace(lambda x: x if x else x)
except calque.TraceError:
    pass
after = [dict(vars(place)) for place in places], dict(vars(math)), torch.random.get_rng_state()
assert before[0] == after[0]
assert before[1] == after[1]
assert torch.equal(before[2], after[2])
"""
    new_process.check(program)


@WITH_AND_WITHOUT
@pytest.mark.parametrize(
    "asks",
    [
        lambda x: x * 2 if x.data_ptr() else x,
        lambda x: x * 2 if x._version else x,
        lambda x: x * 2 if x.is_set_to(x) else x,
        lambda x: x * 2 if x.storage_type() else x,
        lambda x: x * 2 if x.is_shared() else x,
        lambda x: x * 2 if x.is_inference() else x,
        lambda x: x * 2 if x.output_nr else x,
        lambda x: x * 2 if x.untyped_storage().data_ptr() else x,
    ],
)
def test_facts_of_memory_are_refused_at_the_line(asks: Any, known: bool) -> None:
    with pytest.raises(TraceError, match=r"test_no_lies\.py:\d+ in <lambda>: the "):
        traced(asks, X, known=known)


@WITH_AND_WITHOUT
def test_a_check_of_a_number_is_one_of_the_graph(known: bool) -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.sum().item() < 100, lambda: "too much")
        return x * 2

    graph = traced(checked, X, known=known)
    assert torch.equal(graph(X), checked(X))
    with pytest.raises(RuntimeError, match="too much"):
        graph(X + 100)
