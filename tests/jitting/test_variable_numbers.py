"""Python numbers in variables that differ between calls."""

import gc
import warnings
import weakref
from types import SimpleNamespace

import pytest
import torch

import calque
from tests.jitting import (
    numbers_beside_handlers,  # noqa: F401
    numbers_in_tuples,  # noqa: F401
    numbers_needed,  # noqa: F401
)
from tests.jitting.numbers_in_variables import COMPILED, TRACED
from tests.laws.state.describe import describe, difference

pytestmark = pytest.mark.filterwarnings("ignore::calque.RetraceWarning")


def _run(make, device, jit, changing):
    call, change, state = make(device, jit)
    for i in range(8):
        if changing:
            change(i)
        yield describe((call(torch.tensor([[0.5, -1.0], [2.0, 0.25]], device=device)), state()))


def _check(make, changing):
    """Compare a program with its eager run after each call; returns the jitted function."""
    jitted = []

    def jit(fn):
        jitted.append(calque.jit(fn))
        return jitted[-1]

    expected = list(_run(make, "cpu", lambda fn: fn, changing))
    for i, found in enumerate(_run(make, "jax", jit, changing)):
        assert difference(found, expected[i]) is None, i
    return jitted[0]


@pytest.mark.parametrize("name", COMPILED)
def test_formulas_of_numbers_are_computed_at_each_call(name):
    make, traces = COMPILED[name]
    step = _check(make, False)
    assert len(step.history) <= traces, step.history
    assert step.compilations <= traces
    _check(make, True)


@pytest.mark.parametrize("name", TRACED)
def test_numbers_that_code_needs_are_compared(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        _check(TRACED[name], True)


def test_numbers_keep_their_types():
    s = SimpleNamespace(n=0)
    run = calque.jit(lambda x: (x * (s.n / 2), s.n))
    for value in (0, 1, 2, True, 2.0, False, 3, -0.0, float("inf"), 4):
        s.n = value
        x, n = run(torch.ones(1, device="jax"))
        assert (x.item(), repr(n)) == (value / 2, repr(value))


def test_many_numbers_that_code_needs_are_tried_a_few_times():
    s = SimpleNamespace(**{f"n{i}": i for i in range(20)})
    traces = []

    def step(x):
        traces.append(0)
        return sum(x[getattr(s, f"n{i}") % 2] for i in range(20))

    run = calque.jit(step)
    for call in range(3):
        for i in range(20):
            setattr(s, f"n{i}", getattr(s, f"n{i}") + 1)
        assert run(torch.ones(2, device="jax")).item() == 20, call
    assert len(traces) <= 9


def test_a_step_that_prints_its_number_from_time_to_time_is_traced_then(capsys):
    s = SimpleNamespace(n=0, said=[])

    @calque.jit
    def step(x):
        s.n += 1
        rate = 0.5 / s.n
        if s.n % 10 == 0:
            text, last = f"{s.n:d}, {rate:5.2f}", [*range(s.n)][-1]
            print("step", s.n, f"{rate:.3f}", text, int(s.n / 3), last)
            s.said.append(repr(rate))
        return x * rate

    for call in range(1, 46):
        assert step(torch.ones(1, device="jax")).item() == pytest.approx(0.5 / call)
    lines = [
        f"step {n} {0.5 / n:.3f} {n}, {0.5 / n:5.2f} {int(n / 3)} {n - 1}" for n in (10, 20, 30, 40)
    ]
    assert capsys.readouterr().out.splitlines() == lines
    assert s.said == [repr(0.5 / n) for n in (10, 20, 30, 40)]
    assert len(step.history) <= 6, step.history
    assert any("code needs the value" in reason for reason in step.history)


def test_a_line_with_a_number_is_printed_once(capsys):
    s = SimpleNamespace(n=0)

    @calque.jit
    def step(x):
        s.n += 1
        print("step", s.n)
        return x

    for _ in range(4):
        step(torch.ones(1, device="jax"))
    assert capsys.readouterr().out == "step 1\nstep 2\nstep 3\nstep 4\n"


@pytest.mark.parametrize("values", [(0.0, -0.0), (1, 1.0), (1, True), (float("nan"), 1.0)])
def test_values_that_are_only_equal_are_other_texts(values):
    s = SimpleNamespace(n=2.5)

    @calque.jit
    def step(x):
        return x * s.n, f"{s.n}"

    for s.n in (2.5, 3.5, 4.5, *values, *reversed(values), 4.5):
        assert step(torch.ones(1, device="jax"))[1] == f"{s.n}"


def test_an_error_leaves_the_numbers_as_they_are():
    s = SimpleNamespace(n=0, bad=False)

    @calque.jit
    def step(x):
        s.n += 1
        if s.bad:
            raise KeyError("bad")
        return x / s.n

    for expected in (1.0, 0.5, 1 / 3):
        assert step(torch.ones(1, device="jax")).item() == pytest.approx(expected)
    s.bad = True
    with pytest.raises(KeyError):
        step(torch.ones(1, device="jax"))
    assert type(s.n) is int
    s.bad = False
    assert step(torch.ones(1, device="jax")).item() == pytest.approx(1 / s.n)


def test_replaced_objects_are_not_kept():
    class Counter:
        def __init__(self):
            self.n = 0

    s, ended = SimpleNamespace(counter=Counter()), []

    @calque.jit
    def step(x):
        s.counter.n += 1
        return x / s.counter.n

    for _ in range(4):
        ended.append(weakref.ref(s.counter))
        s.counter = Counter()
        for n in range(1, 5):
            assert step(torch.ones(1, device="jax")).item() == pytest.approx(1 / n)
    gc.collect()
    assert sum(one() is not None for one in ended) <= 1


def test_numbers_that_a_dtype_cannot_hold_are_refused():
    s = SimpleNamespace(n=0.5)

    @calque.jit
    def step(x):
        return x.masked_fill(x > 0, s.n), torch.full((1,), s.n / 2, device="jax", dtype=x.dtype)

    for s.n in (0.5, 1.5, -2.5, 300.0):
        filled, full = step(torch.arange(2, device="jax"))
        assert filled.tolist() + full.tolist() == [0, int(s.n), int(s.n / 2)]
    for s.n in (float("inf"), float("nan"), 1e30):
        with pytest.raises(RuntimeError, match="without overflow"):
            step(torch.arange(2, device="jax"))
    s.n = 3.5
    assert step(torch.arange(2, device="jax"))[0].tolist() == [0, 3]
    assert step.compilations <= 2


def test_a_number_that_the_function_changes_is_compiled_once():
    s = SimpleNamespace(n=0, rate=0.0)

    @calque.jit
    def step(x):
        s.n += 1
        s.rate = 0.9 * s.rate + 1 / s.n
        return x * s.rate

    expected = 0.0
    for call in range(1, 8):
        expected = 0.9 * expected + 1 / call
        assert step(torch.ones(1, device="jax")).item() == pytest.approx(expected)
        assert (s.n, s.rate) == (call, expected)
    assert step.history == ["first call"]
    assert step.compilations == 1
