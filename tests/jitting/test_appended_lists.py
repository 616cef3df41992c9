"""Lists to which a function appends: compiled if it does nothing else with them."""

import gc
import mmap
import threading
import weakref
from collections import deque
from types import SimpleNamespace

import pytest
import torch
from torch.utils import _pytree as pytree

import calque
from calque.jitting.python_effects import PythonState
from tests.jitting.appending import APPENDING, READING


def ones(*shape):
    return torch.ones(*shape, device="jax")


def plain(value):
    """Returns nested lists and numbers for the tensors, lists and dicts in a value."""
    value = list(value) if isinstance(value, deque) else value
    leaves, spec = pytree.tree_flatten(value)
    leaves = [
        (one.detach().cpu().tolist(), str(one.dtype)) if isinstance(one, torch.Tensor) else one
        for one in leaves
    ]
    return leaves, str(spec)


def close(one, other):
    """Returns True if two values are equal, apart from rounding."""
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return one == (pytest.approx(other, abs=1e-5) if isinstance(one, float) else other)


def run(make, device, jit, calls=7):
    found = []
    step, change, state = make(device, jit)
    for i in range(calls):
        change(i)
        found.append(plain(step(torch.tensor([1.0, i + 2.0]).to(device), 0)))
        found.append(plain(state()))
    return found


def compare(make):
    made = []

    def jit(function):
        made.append(calque.jit(function))
        return made[-1]

    expected = run(make, "cpu", lambda function: function)
    found = run(make, "jax", jit)
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert close(one, other), f"call {index // 2}: {one} is not {other}"
    return made[0]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", APPENDING)
def test_appending_is_compiled(name):
    make, traces = APPENDING[name]
    step = compare(make)
    assert len(step.history) <= traces, step.history
    assert step.compilations <= traces


@pytest.mark.sampled(40)
@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
@pytest.mark.parametrize("name", READING)
def test_what_is_read_is_right(name):
    compare(READING[name])


@pytest.mark.usefixtures("few_objects")
def test_a_program_does_not_keep_alive_what_lists_hold():
    values, bounded, logs = [], deque(maxlen=20), [{"x": ones(2)} for _ in range(5)]
    values += [ones(2) for _ in range(5)]
    bounded.extend(values)
    weight = torch.ones(1, device="jax", requires_grad=True)

    @calque.jit
    def step(x):
        values.append(x * 2)
        bounded.append(x * weight)
        logs.append({"x": (x, x + 1), "n": 3})
        return x is weight  # compares objects

    for _ in range(4):
        step(ones(2))
    step(ones(3))
    assert len(step.history) == 2
    held = [*values, *bounded, *(one["x"] for one in logs)]
    found = [weakref.ref(one) for one in held if isinstance(one, torch.Tensor)]
    del held
    values.clear(), bounded.clear(), logs.clear()
    gc.collect()
    assert len(found) > 20 and not any(one() is not None for one in found)
    step(ones(2))
    step(ones(3))
    assert len(step.history) == 2 and len(values) == len(bounded) == len(logs) == 2


def test_explain_names_the_lists():
    values = []

    @calque.jit
    def step(x):
        values.append(x)

    step(ones(2))
    assert "appended to at each call: values" in str(step.explain())


def test_two_traces_must_append_the_same():
    values, memory = [], mmap.mmap(-1, 8)  # its contents are not seen

    @calque.jit
    def step(x):
        values.append(memory[0])
        return x * 2

    step(ones(2))
    memory[0] = 5
    with pytest.warns(calque.RetraceWarning, match=r"it appends .* at first, and then"):
        step(ones(2))
    memory[0] = 7
    step(ones(2))
    assert values == [0, 5, 7]


def test_a_failing_call_appends_nothing():
    values = []

    @calque.jit(checks=True)
    def pick(rows, i):
        values.append(rows[i])
        return rows[i]

    rows = torch.eye(3, device="jax")
    for index in (0, 2, 1):
        pick(rows, torch.tensor([index], device="jax"))
    with pytest.raises(IndexError):
        pick(rows, torch.tensor([3], device="jax"))
    assert [one.argmax().item() for one in values] == [0, 2, 1]
    assert pick.history == ["first call"]


def test_values_that_are_assumed():
    values = []

    @calque.jit(specialize=True)
    def step(x):
        y = x if x.sum() > 0 else -x
        values.append(y)
        return y

    for sign in (1, 1, -1, 1, -1, -1, 1):
        step(sign * ones(2))
    assert [one.tolist() for one in values] == [[1, 1]] * 7
    assert len(step.history) <= 2


def test_what_another_thread_appends_during_a_trace_is_not_repeated(monkeypatch):
    values, meanwhile = [], ["of another thread"]

    @calque.jit
    def step(x):
        values.append(x)

    look = PythonState.look

    def looking(state):
        values.extend(meanwhile)
        meanwhile.clear()
        return look(state)

    monkeypatch.setattr(PythonState, "look", looking)
    step(ones(2))
    with pytest.warns(calque.RetraceWarning, match="it appends"):
        step(ones(2))
    step(ones(2))
    assert [one for one in values if isinstance(one, str)] == ["of another thread"]
    assert len(values) == 4


def test_threads_append_to_one_list():
    values = []

    @calque.jit
    def step(x):
        values.append(x * 2)

    step(ones(2)), step(ones(2))

    def work(start):
        for i in range(start, start + 25):
            step(i * ones(2))

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = sorted(int(one[0].item()) // 2 for one in values[2:])
    assert found == sorted(100 * n + i for n in range(3) for i in range(25))
    assert step.history == ["first call"]


def test_an_appended_tensor_is_the_one_that_is_kept_elsewhere():
    holder = SimpleNamespace(last=None, values=[])

    @calque.jit
    def step(x):
        y = x * 2
        holder.values.append(y)
        holder.values.append((y, y[0]))
        holder.last = y
        y.add_(1)

    for i in range(4):
        step(i * ones(2))
        assert holder.values[-2] is holder.last is holder.values[-1][0]
        holder.last[0] = -5.0
        assert holder.values[-1][1].item() == -5.0  # a view of it
    assert [one[0].tolist() for one in holder.values[1::2]] == [[-5, 1 + 2 * i] for i in range(4)]
    assert len(step.history) <= 3


def test_a_hook_that_appends_in_the_backward_of_a_result_is_refused():
    values, weight = [], torch.ones(2, device="jax", requires_grad=True)

    @calque.jit
    def step(x):
        y = x * weight
        y.register_hook(lambda gradient: values.append(gradient))
        return y.sum()

    with pytest.raises(calque.TraceError, match="values"):
        step(ones(2))
    assert values == []
