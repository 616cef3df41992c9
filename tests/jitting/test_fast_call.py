"""Calls like the last one take the short way, and any other call the general one."""

import contextlib
import sys
import threading

import jax
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import calque
from calque.device.runtime import threads
from tests.jitting.taking import Taken


@pytest.fixture
def taken(monkeypatch):
    return Taken(monkeypatch)


AMBIENT = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("jax", torch.bfloat16),
    "another default device": lambda: torch.device("cpu"),
}


@pytest.mark.parametrize("name", AMBIENT)
def test_a_mode_around_the_call_is_seen(name, taken):
    layer = nn.Linear(3, 2).to("jax")
    run = calque.jit(layer)
    x = torch.ones(4, 3, device="jax")
    for _ in range(4):
        run(x)
    before = taken.count
    assert before > 0
    with AMBIENT[name]():
        found, expected = run(x), layer(x)
        assert found.dtype == expected.dtype
        assert found.requires_grad == expected.requires_grad
        assert found.is_inference() == expected.is_inference()
    run(x), run(x)
    assert taken.count > before


def test_a_default_dtype_is_seen(taken):
    run = calque.jit(lambda x: x + torch.ones(2, device="jax"))
    x = torch.ones(2, device="jax")
    for _ in range(4):
        run(x)
    assert taken.count > 0
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        assert run(x).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.bool])
def test_another_dtype_is_seen(dtype, taken):
    run = calque.jit(lambda x: x + x)
    for _ in range(4):
        run(torch.ones(2, device="jax"))
    before = taken.count
    assert before > 0
    other = torch.ones(2, dtype=dtype)
    found, expected = run(other.to("jax")), other + other
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()
    assert taken.count == before


def test_arguments_that_share_memory_are_seen(taken):
    def add_twice(x, y):
        x.add_(1)
        return x + y

    run = calque.jit(add_twice)
    x, y = torch.zeros(2, device="jax"), torch.zeros(2, device="jax")
    for _ in range(4):
        run(x, y)
    assert taken.count > 0
    assert run(x, x).tolist() == [10, 10]
    assert run(x, y).tolist() == [6, 6]


def test_an_argument_that_is_part_of_the_state_is_seen(taken):
    state = torch.zeros(2, device="jax")

    def count(x):
        state.add_(1)
        return state + x

    run = calque.jit(count)
    x = torch.zeros(2, device="jax")
    for _ in range(4):
        run(x)
    assert taken.count > 0
    assert run(state).tolist() == [10, 10]


def test_tensors_of_another_device_and_other_values_are_no_such_arguments(taken):
    run = calque.jit(lambda x: x * 2)
    for _ in range(4):
        run(torch.ones(2, device="jax"))
    before = taken.count
    assert before > 0
    assert run(torch.ones(2)).tolist() == [2, 2]
    assert run(3) == 6
    assert run(x=torch.ones(2, device="jax")).tolist() == [2, 2]
    assert taken.count == before


def test_a_function_that_differs_from_call_to_call_is_traced_each_time(taken):
    import time

    seen = []
    run = calque.jit(lambda x: (seen.append(1), x * time.perf_counter())[1])
    x = torch.ones(1, device="jax")
    with pytest.warns(calque.RetraceWarning):
        values = [run(x).item() for _ in range(8)]
    assert len(set(values)) == len(values)
    assert taken.count == 0


def test_a_step_runs_alone_until_another_thread_comes(taken):
    state = torch.zeros(2, device="jax")

    def count(x):
        state.add_(x)
        return state * 2

    run = calque.jit(count)
    x = torch.ones(2, device="jax")
    for _ in range(5):
        run(x)
    assert taken.alone > 0
    came, may_go = threading.Event(), threading.Event()

    def be_there():
        torch.ones(1, device="jax")
        came.set()
        may_go.wait()

    thread = threading.Thread(target=be_there)
    thread.start()
    came.wait()
    before, alone = taken.count, taken.alone
    assert run(x).tolist() == [12, 12]
    assert (taken.count, taken.alone) == (before + 1, alone)
    may_go.set()
    thread.join()
    assert run(x).tolist() == [14, 14]
    assert taken.alone == alone + 1


def test_a_backward_whose_hook_asks_for_its_thread_leaves_the_caller_alone():
    before = len(threads.present)
    x = torch.ones(2, device="jax", requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: threading.current_thread() and gradient * 2)
    y.sum().backward()
    assert x.grad.tolist() == [4, 4]
    assert len(threads.present) == before


def test_the_first_call_of_a_thread_is_not_alone(taken):
    state = torch.zeros(2, device="jax")
    run = calque.jit(lambda x: state.add_(x))
    x = torch.ones(2, device="jax")
    for _ in range(5):
        run(x)
    before, alone = taken.count, taken.alone
    assert alone > 0
    thread = threading.Thread(target=run, args=(x,))
    thread.start()
    thread.join()
    assert (taken.count, taken.alone) == (before + 1, alone)
    assert threads.alone.calls == 0


def test_a_thread_waits_for_a_call_that_is_alone(monkeypatch):
    came = []
    monkeypatch.setattr(threads.alone, "calls", 1)

    def work():
        torch.ones(1, device="jax")
        came.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.05)
    assert not came
    threads.alone.calls = 0
    thread.join()
    assert came


def test_an_error_of_a_call_leaves_no_call_behind(taken, monkeypatch):
    run = calque.jit(lambda x: x * 2)
    x = torch.ones(2, device="jax")
    for _ in range(5):
        run(x)

    def fail(args):
        raise RuntimeError("broken")

    monkeypatch.setattr(run, "_alone", fail)
    with pytest.raises(RuntimeError, match="broken"):
        run(x)
    assert threads.alone.calls == 0


def test_threads_that_share_a_step_lose_nothing(taken):
    state = torch.zeros(2, device="jax")

    def count(x):
        state.add_(x)
        return state + 0

    run = calque.jit(count)
    x = torch.ones(2, device="jax")
    for _ in range(5):
        run(x)

    def work():
        for _ in range(20):
            run(x)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        run(x)
    for thread in threads:
        thread.join()
    assert state.tolist() == [85, 85]


class Seeing(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        return found + 1 if function is torch.mul else found


class Watching(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


@pytest.fixture
def doubling(taken):
    run = calque.jit(lambda x: torch.mul(x, 2))
    x = torch.ones(3, device="jax")
    for _ in range(4):
        run(x)
    assert taken.alone > 0
    return run, x


def test_a_function_mode_is_seen(doubling):
    run, x = doubling
    with Seeing():
        assert run(x).tolist() == [3, 3, 3]
    assert run(x).tolist() == [2, 2, 2]


def test_a_dispatch_mode_is_seen(doubling):
    run, x = doubling
    with Watching() as watching:
        assert run(x).tolist() == [2, 2, 2]
    assert torch.ops.aten.mul.Tensor in watching.seen


def test_transformations_are_seen(doubling):
    run, x = doubling
    assert torch.func.grad(lambda x: run(x).sum())(x).tolist() == [2, 2, 2]
    assert torch.func.vmap(run)(x).tolist() == [2, 2, 2]
    assert torch.func.jvp(run, (x,), (x,))[1].tolist() == [2, 2, 2]


def test_a_tangent_is_seen(doubling):
    run, x = doubling
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        assert torch.autograd.forward_ad.unpack_dual(run(dual)).tangent.tolist() == [2, 2, 2]


def test_a_call_inside_of_another_is_part_of_it(doubling):
    run, x = doubling
    assert calque.jit(lambda x: run(x) + 1)(x).tolist() == [3, 3, 3]


def test_a_recorded_call_is_served(doubling, taken):
    run, x = doubling
    before = taken.count
    with torch.profiler.profile() as profile:
        assert run(x).tolist() == [2, 2, 2]
    assert taken.count == before + 1
    assert any(event.key.startswith("calque.jit") for event in profile.key_averages())


def test_a_search_for_nans_is_seen(taken):
    run = calque.jit(lambda x: torch.log(x))
    x = torch.ones(3, device="jax")
    for _ in range(4):
        run(x)
    assert taken.alone > 0
    with jax.debug_nans(True), pytest.raises(Exception, match="nan"):
        run(-x)
    assert run(x).tolist() == [0, 0, 0]


@pytest.mark.parametrize("count", [0, 1, 3, 6])
def test_any_number_of_arguments_is_served(count, taken):
    state = torch.zeros(2, device="jax")
    run = calque.jit(lambda *given: state.add_(1 + sum(given, torch.zeros(2, device="jax"))))
    given = [torch.ones(2, device="jax") for _ in range(count)]
    for calls in range(1, 7):
        assert run(*given).tolist() == [calls * (1 + count)] * 2
    assert taken.alone > 0
    if count > 1:  # the same tensor twice
        assert run(*given[1:], given[1]).tolist() == [7 * (1 + count)] * 2
        assert run(*given[1:], state).tolist() == [14 * (1 + count) + count] * 2


def test_lazy_conjugates_are_seen(taken):
    run = calque.jit(lambda x: x + 0)
    x = torch.tensor([1 + 2j]).to("jax")
    for _ in range(4):
        run(x)
    assert taken.alone > 0
    assert run(x.conj()).tolist() == [1 - 2j]
    assert run(x).tolist() == [1 + 2j]


def test_a_part_of_a_storage_that_moves_is_seen(taken):
    flat = torch.arange(6.0).to("jax")
    weight = nn.Parameter(torch.zeros(3, device="jax"))
    weight.data = flat[:3]
    run = calque.jit(lambda x: weight.detach() * x)
    x = torch.ones(3, device="jax")
    for _ in range(4):
        assert run(x).tolist() == [0, 1, 2]
    assert taken.count > 0
    weight.data = flat[3:]
    assert run(x).tolist() == [3, 4, 5]


def test_another_dtype_of_the_state_is_seen(taken):
    weight = torch.zeros(3, device="jax")
    run = calque.jit(lambda x: weight + x)
    x = torch.ones(3, device="jax")
    for _ in range(4):
        run(x)
    assert taken.count > 0
    weight.data = torch.ones(3, dtype=torch.int32, device="jax").view(torch.int32)
    assert run(x).tolist() == [2, 2, 2]


def test_what_the_caller_still_holds_is_not_given_away(taken):
    state = torch.zeros(3, device="jax")
    run = calque.jit(lambda x: state.add_(x).sum())
    x = torch.ones(3, device="jax")
    for _ in range(4):
        run(x)
    assert taken.alone > 0
    held = calque.to_jax(state)
    clone = state.clone()
    run(x)
    assert held.tolist() == clone.tolist() == [4, 4, 4]
    assert state.tolist() == [5, 5, 5]


@pytest.mark.parametrize("count", [1, 20, 450])
@pytest.mark.parametrize("read_only", [0, 1])
def test_any_number_of_state_tensors_is_served(count, read_only, taken):
    state = [torch.full((2,), float(i)).to("jax") for i in range(count)]
    others = [torch.ones(2, device="jax") for _ in range(read_only)]

    @calque.jit
    def run(x):
        for tensor in state:
            tensor.add_(sum(others, x))
        return x + 1

    x = torch.ones(2, device="jax")
    step = 1 + read_only
    for calls in range(1, 6):
        assert run(x).tolist() == [2, 2]
        assert [one[0].item() for one in state] == [i + step * calls for i in range(count)]
    assert taken.alone > 0
    middle = count // 2
    held, versions = calque.to_jax(state[middle]), [one._version for one in state]
    run(x)
    assert held.tolist() == [middle + step * 5] * 2  # a copy of it was given away
    assert [one[0].item() for one in state] == [i + step * 6 for i in range(count)]
    assert all(now._version > before for now, before in zip(state, versions, strict=True))
    state[middle].data = torch.zeros(2, device="jax")
    run(x)
    assert state[middle].tolist() == [step] * 2
    state[-1] = torch.zeros(2, device="jax")
    run(x)
    assert state[-1].tolist() == [step] * 2


class _Stopped(BaseException):
    pass


def _stopped_at(line, call):
    """Makes a call that a trace function ends at a line of the generated function, if it gets that
    far; returns whether it did.
    """
    seen = 0

    def look(frame, event, arg):
        nonlocal seen
        if frame.f_code.co_filename != "<made by calque.jit>":
            return None
        if event == "line":
            seen += 1
            if seen == line:
                raise _Stopped
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        call()
    except _Stopped:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("count", [3, 100, 450])
def test_a_call_that_ends_at_any_line_has_changed_all_or_nothing(count, taken):
    state = [torch.full((2,), float(i)).to("jax") for i in range(count)]

    @calque.jit
    def run(x):
        for tensor in state:
            tensor.add_(x)
        return x + 1

    x = torch.ones(2, device="jax")
    for _ in range(4):
        run(x)
    assert taken.alone > 0
    calls, line, changed = 4, 0, []
    while True:
        line += 1
        versions = [one._version for one in state]
        stopped = _stopped_at(line, lambda: run(x))
        now = {one.tolist()[0] - i for i, one in enumerate(state)}
        assert now <= {calls} or now == {calls + 1}
        changed.append(now != {calls})
        if changed[-1]:
            calls += 1
            assert all(one._version > v for one, v in zip(state, versions, strict=True))
        if not stopped:
            break
    assert changed[-1] and not all(changed) and line > 20
    assert run(x).tolist() == [2, 2]


def test_versions_advance_and_a_used_up_graph_says_so(taken):
    weight = nn.Parameter(torch.ones(3, device="jax"))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    @calque.jit
    def step(x):
        loss = (weight * x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x = torch.ones(3, device="jax")
    for _ in range(4):
        step(x)
    assert taken.alone > 0
    before = weight._version
    loss = step(x)
    assert weight._version > before
    assert loss.requires_grad
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_an_object_that_is_equal_again_does_not_hide_a_change(taken):
    class Config:
        def __init__(self, factor):
            self.factor = factor

    holder = {"config": Config(2.0)}
    run = calque.jit(lambda x: x * holder["config"].factor)
    x = torch.ones(2, device="jax")
    for _ in range(4):
        run(x)
    first = holder["config"]
    holder["config"] = Config(2.0)
    assert [run(x).tolist() for _ in range(3)] == [[2, 2]] * 3
    first.factor = 3.0
    holder["config"] = first
    assert [run(x).tolist() for _ in range(3)] == [[3, 3]] * 3
    assert taken.count > 0


def test_autograds_own_thread_is_no_other_one(taken):
    weight = torch.ones(3, device="jax", requires_grad=True)
    (weight * 2).sum().backward()  # in a thread of autograd that stays alive
    run = calque.jit(lambda x: x * 2)
    for _ in range(4):
        run(torch.ones(3, device="jax"))
    assert taken.alone > 0


def test_a_gradient_of_any_class_is_seen_among_many(taken):
    class Odd(torch.Tensor):
        __hash__ = None

    leaves = [nn.Parameter(torch.ones(1, device="jax")) for _ in range(80)]
    run = calque.jit(lambda x: x + sum(p.detach() for p in leaves if p.grad is None))
    x = torch.zeros(1, device="jax")
    for _ in range(5):
        assert run(x).item() == 80
    assert taken.count > 0
    leaves[3].grad = torch.ones(1, device="jax")
    assert run(x).item() == 79
    leaves[3].grad = None
    assert run(x).item() == 80
    leaves[4].grad = torch.ones(1, device="jax").as_subclass(Odd)
    assert run(x).item() == 79
