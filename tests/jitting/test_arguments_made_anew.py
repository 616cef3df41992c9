"""Arguments that a loop makes anew for each call: functions closing over tensors, sets, slices."""

import functools
import gc
import weakref

import pytest
import torch

import calque


def vector(*values):
    return torch.tensor([float(v) for v in values], device="jax")


def closing(t):
    return lambda x: x * t


def nested(t):
    inner = closing(t)
    return lambda x: inner(x)


def by_default(t):
    return lambda x, t=t, *, scale=1.0: x * t * scale


def partial(t):
    return functools.partial(torch.mul, t)


def recursive(t):
    def power(x, left=1):
        return x if left == 0 else power(x * t, left - 1)

    return power


@pytest.mark.parametrize("make", [closing, nested, by_default, partial, recursive])
def test_what_a_function_closes_over_is_an_input(make):
    @calque.jit
    def apply(x, function):
        return function(x), function

    for i in range(4):
        function = make(vector(i))
        result, same = apply(vector(2), function)
        assert result.tolist() == [2.0 * i]
        assert same is function
    assert len(apply.history) == 2, apply.history


def test_a_loss_that_closes_over_a_target_and_a_parameter():
    weight = torch.ones(1, device="jax", requires_grad=True)

    @calque.jit
    def step(x, loss):
        found = loss(x)
        found.backward()
        return found.detach()

    for i in range(4):
        weight.grad = None
        target, seen = vector(i), torch.zeros(1, device="jax")

        def loss(x, target=target, seen=seen):
            seen.add_(1)
            return ((x * weight - target) ** 2).sum()

        assert step(vector(1), loss).item() == (1 - i) ** 2
        assert weight.grad.tolist() == [2.0 * (1 - i)]
        assert seen.tolist() == [1]
    assert len(step.history) == 2, step.history


def test_a_function_whose_variables_change_is_the_callers_own():
    @calque.jit
    def apply(x, function):
        return function(x)

    for i in range(4):
        count, t = 0, vector(i)

        def function(x, t=t):
            nonlocal count
            count += 1
            return x * t

        assert apply(vector(1), function).tolist() == [i]
        assert count == 1


def test_a_function_that_the_state_has_too_is_told_by_identity():
    chosen = []

    @calque.jit
    def apply(x, function):
        return function(x) * (10 if any(function is one for one in chosen) else 1)

    for i in range(4):
        function = closing(vector(i))
        chosen[:] = [function] if i % 2 else []
        assert apply(vector(1), function).tolist() == [i * (10 if i % 2 else 1)]


@pytest.mark.usefixtures("few_objects")
def test_tensors_of_functions_are_not_kept():
    @calque.jit
    def apply(x, function):
        return function(x)

    seen = []
    for i in range(4):
        t = vector(i)
        seen.append(weakref.ref(t))
        apply(vector(1), closing(t))
    del t
    gc.collect()
    assert not any(ref() for ref in seen[1:])


@pytest.mark.parametrize(
    "make", [lambda n: slice(0, n), range, lambda n: frozenset(range(n)), lambda n: set(range(n))]
)
def test_values_that_python_compares_are_compared_so(make):
    @calque.jit
    def count(x, value):
        end = value.stop if isinstance(value, slice | range) else len(value)
        return (x[:end].sum(), value)

    for n in (2, 2, 3, 2, 3):
        value = make(n)
        total, same = count(vector(1, 1, 1), value)
        assert (total.item(), same == value) == (n, True)
    assert len(count.history) <= 3, count.history


@pytest.mark.parametrize("items", [("a", "b"), (7, 15)])  # 7 and 15 collide: 15 comes first
def test_a_set_is_changed_for_its_caller(items):
    @calque.jit
    def grow(x, names):
        first = next(iter(names))
        names.add("c")
        return x * len(names), first

    for _ in range(4):
        names = set(items)
        expected = next(iter(names))
        total, first = grow(vector(1), names)
        assert (total.tolist(), first) == ([3], expected)
        assert names == {*items, "c"}
    assert len(grow.history) == 2, grow.history


def test_equal_slices_of_other_types_are_other_values():
    @calque.jit
    def start(x, where):
        return x * (2 if where.start is True else 1)

    assert start(vector(1), slice(1, 2)).tolist() == [1]
    assert start(vector(1), slice(True, 2)).tolist() == [2]


def test_whether_the_engine_may_use_threads_is_read_as_it_is():
    @calque.jit
    def scaled(x):
        return x * (2 if torch.autograd.is_multithreading_enabled() else 3)

    for enabled in (True, False, True, False):
        with torch.autograd.set_multithreading_enabled(enabled):
            assert scaled(vector(1)).tolist() == [2 if enabled else 3]
    assert len(scaled.history) == 2


def test_a_number_that_a_function_closes_over_is_not_called_an_argument():
    run = calque.jit(lambda x, scale: scale(x))
    for number in (1, 2, 3):
        assert run(vector(1.0), lambda x, number=number: x * number).tolist() == [number]
    assert run.history[-1] == "a value in the arguments was 2 and is 3"
