"""A computation is what it was where it was defined, whatever becomes of the names in it."""

import functools
import itertools
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from calque import federated as fed
from calque.errors import TraceError

FRAMEWORKS = pytest.mark.parametrize("framework", ["torch", "jax"])
rate = 1.0


def test_computations_of_a_loop_have_the_values_of_their_turns() -> None:
    made = [fed.computation("float32@SERVER")(lambda x: x + float(i)) for i in range(3)]  # noqa: B023
    assert [float(one(0.0)) for one in made] == [0.0, 1.0, 2.0]


@FRAMEWORKS
def test_local_functions_of_a_loop_have_the_values_of_their_turns(framework: Any) -> None:
    made = []
    for i in range(3):
        made.append(fed.local("float32", framework=framework)(lambda x: x + i))  # noqa: B023
    assert [float(one(0.0)) for one in made] == [0.0, 1.0, 2.0]


@FRAMEWORKS
def test_a_changed_variable_of_a_function_of_open_sizes_is_an_error(framework: Any) -> None:
    made = []
    for i in range(2):
        made.append(fed.local("float32[?]", framework=framework)(lambda x: x + i))  # noqa: B023
    zeros = np.zeros(3, np.float32)
    with pytest.raises(fed.FederatedTypeError, match="reads 'i', which was 0 when it was defined"):
        made[0](zeros)
    assert made[1](zeros).tolist() == [1.0] * 3
    fixed = [fed.local("float32[?]")(lambda x, i=i: x + i) for i in range(2)]
    assert [float(one(zeros)[0]) for one in fixed] == [0.0, 1.0]


def test_a_changed_global_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    @fed.local("float32[?]", framework="jax")
    def scaled(x: Any) -> Any:
        return next(rate * one for one in (x,))

    monkeypatch.setitem(globals(), "rate", 2.0)
    with pytest.raises(fed.FederatedTypeError, match=r"'rate', which was 1\.0"):
        scaled(np.ones(2, np.float32))
    monkeypatch.undo()
    assert scaled(np.ones(2, np.float32)).tolist() == [1.0, 1.0]


def test_a_function_may_count_its_own_traces() -> None:
    traces = 0

    @fed.local("float32[?]", framework="jax")
    def counted(x: Any) -> Any:
        nonlocal traces
        traces += 1
        return x

    assert counted(np.ones(2, np.float32)).tolist() == [1.0, 1.0]
    assert traces > 0


def test_values_do_not_leave_the_function_they_belong_to() -> None:
    kept: list[Any] = []

    @fed.computation("float32@SERVER")
    def first(x: Any) -> Any:
        kept.append(x)
        return x

    with pytest.raises(fed.FederatedTypeError, match="outside the function that created it"):
        fed.computation("float32@SERVER")(lambda x: x + kept[0])
    with pytest.raises(fed.FederatedTypeError, match="outside the function that created it"):
        kept[0] + 1.0


@FRAMEWORKS
def test_a_local_function_cannot_close_over_a_value(framework: Any) -> None:
    def outer(model: Any, x: Any) -> Any:
        work = fed.local("float32", framework=framework)(lambda v: v * model)
        return fed.federated_map(work, x)

    with pytest.raises(fed.FederatedTypeError, match="outside the function that created it"):
        fed.computation("float32@SERVER", "{float32}@CLIENTS")(outer)


class Point(NamedTuple):
    x: float


def test_a_polymorphic_function_sees_the_container_of_each_call() -> None:
    @fed.local(framework="jax")
    def which(value: Any) -> Any:
        return jnp.int32([list, tuple, dict, Point].index(type(value)))

    calls = ([1.0, 2.0], (1.0, 2.0), {"x": 1.0}, Point(1.0), [1.0, 2.0])
    assert [int(which(value)) for value in calls] == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_a_tensor_that_was_written_to_is_an_error_for_other_sizes(device: str) -> None:
    scale = torch.ones((), device=device)
    scaled = fed.local("float32[?]")(lambda x: x * scale)
    assert scaled(np.ones(2, np.float32)).tolist() == [1.0, 1.0]
    scale.add_(1)
    with pytest.raises(fed.FederatedTypeError, match="'scale', whose tensors have been written to"):
        scaled(np.ones(3, np.float32))


def test_a_module_that_was_trained_is_an_error_for_other_sizes() -> None:
    module = torch.nn.Linear(1, 1)
    applied = fed.local("float32[?,1]")(lambda x: module(x))
    module.load_state_dict({"weight": torch.ones(1, 1), "bias": torch.ones(1)})
    with pytest.raises(fed.FederatedTypeError, match="'module', whose tensors"):
        applied(np.ones((3, 1), np.float32))


class Settings:
    rate = 1.0

    def __init__(self) -> None:
        self.rates = {"first": [1.0]}
        self.counts: list[int] = []

    def scaled(self, x: Any) -> Any:
        self.counts.append(len(x))
        return x * self.factor()

    def factor(self) -> float:
        return self.rates["first"][0]


def through_a_helper(x: Any, settings: Any) -> Any:
    return x * settings.rates["first"][0]


@FRAMEWORKS
@pytest.mark.parametrize(
    "how", ["method", "attribute", "helper", "default", "keyword", "item", "jitted"]
)
def test_what_a_variable_holds_must_stay_as_it_is(framework: Any, how: str) -> None:
    settings = Settings()
    rates = settings.rates
    helper = jax.jit(lambda x: x * settings.rates["first"][0])
    functions: dict[str, Any] = {
        "method": settings.scaled,
        "attribute": lambda x: x * settings.rates["first"][0],
        "helper": lambda x: through_a_helper(x, settings),
        "default": lambda x, rates=rates: x * rates["first"][0],
        "keyword": functools.partial(through_a_helper, settings=settings),
        "item": lambda x: x * rates["first"][0],
        "jitted": (lambda x: helper(x))
        if framework == "jax"
        else (lambda x: x * rates["first"][0]),
    }
    made = fed.local("float32[?]", framework=framework)(functions[how])
    ones = np.ones(2, np.float32)
    if how != "method" or framework == "jax":  # in PyTorch, a called method is not a kept value
        assert made(ones).tolist() == [1.0, 1.0]
    settings.rates["first"][0] = 2.0
    with pytest.raises(fed.FederatedTypeError, match=r"\['first'\]\[0\]\"?, which was 1\.0 when"):
        made(np.ones(3, np.float32))


def test_an_array_and_what_a_function_does_not_read() -> None:
    weights, settings = np.ones(1, np.float32), Settings()

    @fed.local("float32[?]", framework="jax")
    def made(x: Any) -> Any:
        return x * weights * settings.rate

    settings.counts.append(1)
    assert made(np.ones(2, np.float32)).tolist() == [1.0, 1.0]
    weights[0] = 2.0
    with pytest.raises(fed.FederatedTypeError, match="'weights', whose content has changed"):
        made(np.ones(3, np.float32))


@FRAMEWORKS
def test_a_polymorphic_local_function_keeps_its_values(framework: Any) -> None:
    factor = 1.0

    @fed.local(framework=framework)
    def made(x: Any) -> Any:
        return x * factor

    assert made(np.ones(2, np.float32)).tolist() == [1.0, 1.0]
    factor = 2.0
    assert made(np.ones(2, np.float32)).tolist() == [1.0, 1.0]
    with pytest.raises(fed.FederatedTypeError, match=r"reads 'factor', which was 1\.0"):
        made(np.ones(3, np.float32))


class Holder:
    def __init__(self, value: int) -> None:
        self.value = value


@pytest.mark.parametrize("how", ["array", "item", "variable", "attribute", "generator", "numpy"])
def test_a_function_of_jax_whose_next_call_reads_what_it_changes_is_refused(how: str) -> None:
    array, items, number, drawn = np.zeros(2, np.float32), [0], 0, np.random.default_rng(0)
    holder = Holder(0)

    def changing(x: Any) -> Any:
        nonlocal number
        if how == "array":
            array[0] += 1
            return x + array
        if how == "item":
            items[0] += 1
            return x + items[0]
        if how == "variable":
            number += 1
            return x + number
        if how == "attribute":
            holder.value += 1
            return x + holder.value
        return x + (drawn.normal() if how == "generator" else np.random.rand())

    with pytest.raises(TraceError, match="the local function 'changing' changes .*next call reads"):
        fed.local("float32[2]", framework="jax")(changing)


def test_numbers_that_python_or_numpy_draw_in_a_function_of_pytorch_are_refused() -> None:
    drawn = np.random.default_rng(0)
    for draw, name in ((random.random, "random"), (drawn.normal, "drawn")):
        with pytest.raises(TraceError, match=f"changes '{name}'|changes 'draw.*'"):
            fed.local("float32")(lambda x: x + float(draw()))  # noqa: B023


def _ones() -> Iterator[float]:
    total = 0.0
    while True:
        total += 1.0
        yield total


@FRAMEWORKS
@pytest.mark.parametrize(
    "make",
    [
        *(lambda: iter([1.0, 2.0, 3.0]), lambda: iter(range(9)), itertools.count, _ones),
        *(lambda: itertools.cycle((1.0, 2.0)), lambda: (x for x in range(9))),
        *(lambda: zip([1.0, 2.0], range(9)), lambda: map(float, range(9))),
    ],
)
def test_what_is_taken_from_an_iterator_outside_is_refused(make: Any, framework: Any) -> None:
    source = make()

    def taking(x: Any) -> Any:
        value = next(source)
        return x + (value[0] if isinstance(value, tuple) else value)

    with pytest.raises(TraceError, match="changes 'source', and its next call reads that"):
        fed.local("float32", framework=framework)(taking)


def test_an_iterator_that_makes_no_difference_may_be_taken_from() -> None:
    numbers = itertools.count()

    @fed.local("float32")
    def named(x: torch.Tensor) -> dict[str, Any]:
        assert f"call {next(numbers)}"
        return {"twice": 2 * x}

    assert float(named(1.0)["twice"]) == 2.0


def test_a_generator_without_a_state_may_be_around() -> None:
    source = random.SystemRandom()
    made = fed.local("float32", framework="jax")(lambda x: x + 0 * isinstance(source, int))
    assert float(made(1.0)) == 1.0


def test_what_a_function_of_jax_leaves_may_be_of_no_account() -> None:
    cache: dict[str, Any] = {}

    @fed.local("float32[2]", framework="jax")
    def cached(x: Any) -> Any:
        if "factor" not in cache:
            cache["factor"] = np.float32(2.0)
        return x * cache["factor"]

    assert cached(np.ones(2, np.float32)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("inner", [lambda f: f, jax.jit], ids=["plain", "jitted"])
def test_an_array_of_numpy_has_its_numbers_at_the_definition(inner: Any) -> None:
    array, number = np.zeros(2, np.float32), np.zeros((), np.float32)
    made = fed.local("float32[2]", framework="jax")(inner(lambda x: x + array + number))
    array += 5
    number += 5
    assert made(np.ones(2, np.float32)).tolist() == [1.0, 1.0]
