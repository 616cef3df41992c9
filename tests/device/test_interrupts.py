"""Handlers of signals wait where they would break something, and for no longer."""

import _thread
import ctypes
import dis
import functools
import gc
import importlib
import operator
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._stats import count

import calque
from calque.device.backend import backward_errors, torch_jax
from calque.device.memory.cell import x64
from calque.device.runtime import held_functions, interrupts
from calque.errors.handlers import settles
from calque.interop import jax_programs
from calque.interop.jax_programs import precision
from calque.jitting import tracing
from calque.program import call_serialization, traced_numbers
from calque.state import Running, Snapshot
from calque.tracing.symbolic import assignments, capture
from calque.upstream.jax_internals import enable_x64
from calque.upstream.torch_internals import (
    get_current_dispatch_mode_stack,
    get_current_function_mode_stack,
)
from tests.faults.interrupting import in_process

SIGNAL = signal.SIGUSR1


class Interrupt(BaseException):
    pass


def interrupt(signum, frame):
    raise Interrupt


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    before = signal.signal(SIGNAL, interrupt)
    yield
    signal.signal(SIGNAL, before)


def moment(_: object = None) -> None:
    """A call: after it the interpreter looks for interrupts."""


def sender(kind: str) -> Callable[[], object]:
    """What makes an interrupt pending: a function of C, after which no instruction comes."""
    if kind == "signal":
        return functools.partial(_thread.interrupt_main, SIGNAL)
    thread, error = ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Interrupt)
    return functools.partial(ctypes.pythonapi.PyThreadState_SetAsyncExc, thread, error)


class HostRead:
    """Stands where PyTorch's guard looks up what says the device's type.

    Attributes:
        times: how often it did.
        moment: at which time an interrupt is made pending; None for never.
    """

    def __init__(self, kind: str) -> None:
        self.times = 0
        self.moment: int | None = None
        send = sender(kind)
        # The staticmethod is kept alive here, so that the reference count is the usual one.
        usual = self.usual = torch_jax.DeviceGuard.__dict__["type_"]

        def look_up(guard: torch_jax.DeviceGuard) -> Callable[[], Any]:
            try:  # as in `device_type`, which the engine also calls with an exception set
                for _ in held_functions.NOTHING:
                    pass
            except BaseException as error:
                held_functions.taken[:] = [error]
            self.times += 1
            if self.times == self.moment:
                [*map(operator.call, [send])]  # C++ continues with a pending exception
            return usual.__wrapped__

        torch_jax.DeviceGuard.type_ = property(  # type: ignore[assignment]
            interrupts.entered_unseen(look_up)  # type: ignore[arg-type]
        )


def train() -> list[float]:
    """A step with views, writes, and backwards in both kinds of thread; always the same one."""
    w = torch.linspace(-1, 1, 4, device="jax").requires_grad_()
    optimizer = torch.optim.SGD([w], lr=0.1)
    loss = ((w * 2).view(2, 2).t()[1].add_(1) ** 2).sum()
    loss.backward()
    with torch.autograd.set_multithreading_enabled(False):
        w.tanh().sum().backward()
    optimizer.step()
    return [loss.item(), *w.tolist()]


def check_guard() -> None:
    """Interrupt a program at each of the moments at which C++ is in the guard."""
    signal.signal(SIGNAL, interrupt)
    for kind in ("signal", "thread"):
        asked = HostRead(kind)
        expected = train()
        asked.times = 0
        assert train() == expected
        moments = asked.times
        assert moments > 20, moments
        for number in range(1, moments + 1):
            asked.times, asked.moment = 0, number
            with pytest.raises(Interrupt):
                moment(train())
            assert asked.times >= number
            torch.set_grad_enabled(True)
            asked.moment = None
            assert train() == expected
        torch_jax.DeviceGuard.type_ = asked.usual


def test_an_interrupt_while_pytorch_asks_the_guard_comes_afterwards():
    in_process(__name__, "check_guard()")


def check_unwinding() -> None:
    """Interrupt C++ while the exception of a hook goes through it."""
    signal.signal(SIGNAL, interrupt)
    error, w = ValueError("of the hook"), torch.ones(3, device="jax", requires_grad=True)
    sends = [sender("signal")]

    def fail(grad: torch.Tensor) -> None:
        [*map(operator.call, sends)]
        raise error  # not a call, after which the interpreter would look for interrupts

    def step(_: bool) -> torch.Tensor:
        y = (w * 2).tanh()
        y.register_hook(fail)
        y.sum().backward()
        return y.detach()

    for run in (step, calque.jit(step), calque.jit(step)):
        for again in (False, True):
            with (
                torch.autograd.set_multithreading_enabled(False),
                pytest.raises(Interrupt) as caught,
            ):
                moment(run(again))
            assert caught.value.__context__ is error
            assert torch.is_grad_enabled() and not held_functions.taken
    sends.clear()
    with pytest.raises(ValueError, match="of the hook") as failed:
        step(False)
    assert all(one.filename != interrupts.__file__ for one in traceback.extract_tb(failed.tb))


def test_an_interrupt_while_an_error_goes_through_pytorch_comes_afterwards():
    """As when Ctrl-C is pressed twice during a backward pass: the process would end."""
    in_process(__name__, "check_unwinding()")


@pytest.mark.parametrize("kind", ["signal", "thread"])
def test_what_the_guard_calls_is_entered_and_left_before_an_interrupt(kind):
    with pytest.raises(Interrupt) as caught:
        moment([*map(operator.call, [sender(kind), backward_errors.device_type])])
    assert "device_type" not in [one.name for one in traceback.extract_tb(caught.tb)]


def test_nothing_in_what_the_guard_calls_looks_for_interrupts():
    instructions = list(dis.get_instructions(backward_errors.device_type))
    entry = next(one for one in instructions if one.opname == "RESUME")
    assert entry.arg is not None and entry.arg >= 2
    assert not any("CALL" in one.opname.split("_")[0] for one in instructions)


@settles
def one_step(done: list[int], fail: bool = False) -> None:
    signal.raise_signal(SIGNAL)
    for number in range(30):
        if number == 20:
            signal.raise_signal(SIGNAL)
        done.extend(map(deeper, [number]))
    if fail:
        raise ValueError("of the step")


def deeper(number: int) -> int:
    return sorted([number])[0]


def test_a_step_that_settles_is_not_cut_in_two():
    done: list[int] = []
    with pytest.raises(Interrupt) as caught:
        moment(one_step(done))
    assert done == list(range(30))
    frames = traceback.extract_tb(caught.tb)
    assert not any(one.filename == interrupts.__file__ for one in frames)


def test_a_handler_runs_once_for_a_signal_that_had_to_wait():
    frames = []
    signal.signal(SIGNAL, lambda signum, frame: frames.append((signum, frame.f_code.co_name)))
    moment(one_step([]))
    assert [number for number, _ in frames] == [SIGNAL]
    # Python runs it after the step, immediately or after another thread has run.
    assert frames[0][1] in ("moment", "test_a_handler_runs_once_for_a_signal_that_had_to_wait")


@pytest.mark.parametrize("install", [sys.settrace, sys.setprofile])
def test_a_step_goes_on_while_a_tool_traces_it(install):
    """A debugger, a coverage tool, or calque itself while it traces a function."""
    came, done = [], []
    threads = _thread._count()
    signal.signal(SIGNAL, lambda signum, frame: came.append(frame.f_code.co_name))
    install(lambda frame, event, argument: None)
    try:
        one_step(done)
    finally:
        install(None)
    assert done == list(range(30))
    assert "one_step" not in came
    until = time.monotonic() + 10
    while (not came or _thread._count() > threads) and time.monotonic() < until:
        moment()  # threads that still send the signal would interrupt other tests
    # `install(None)` is an event of which calque's audit hook is told first.
    assert came[0] in ("moment", "test_a_step_goes_on_while_a_tool_traces_it", "_on_audit")


def test_an_error_of_a_step_and_an_interrupt_are_both_seen():
    def run() -> None:
        try:
            one_step([], fail=True)
        finally:
            moment()

    with pytest.raises(Interrupt) as caught:
        run()
    assert str(caught.value.__context__) == "of the step"


@pytest.mark.usefixtures("few_objects")
def test_an_interrupt_is_not_lost_in_what_the_collector_calls():
    def called(phase, info):
        signal.raise_signal(SIGNAL)
        moment(phase)

    # Callbacks of weak references to garbage of earlier tests would swallow exceptions.
    gc.collect()
    gc.callbacks.append(called)
    try:
        with pytest.raises(Interrupt):
            moment(gc.collect())
    finally:
        gc.callbacks.remove(called)


def test_a_reference_that_somebody_keeps_does_not_hold_up_signals_for_ever(monkeypatch):
    monkeypatch.setattr(held_functions, "_STRAY_AFTER", 0.05)
    kept = torch_jax.DeviceGuard.type_

    def run() -> None:
        signal.raise_signal(SIGNAL)
        for _ in range(10_000_000):
            moment(kept)

    with pytest.raises(Interrupt):
        run()


def test_nothing_keeps_a_reference_after_a_backward_an_error_or_a_trace():
    def fail(grad):
        raise ValueError("of the hook")

    (held,) = held_functions._held
    model = nn.Linear(2, 2).to("jax")
    x = torch.ones(2, 2, device="jax")
    model(x).sum().backward()
    assert not held.is_held()
    y = model(x)
    y.register_hook(fail)
    with pytest.raises(ValueError, match="of the hook") as caught:
        y.sum().backward()
    assert not held.is_held(), caught
    calque.jit(lambda: model(x).sum().backward())()
    assert not held.is_held()


@pytest.mark.parametrize("kind", ["signal", "thread"])
@pytest.mark.parametrize("make", [x64, lambda: precision([np.ones(())])])
@pytest.mark.parametrize("entering", [True, False])
def test_an_interrupt_leaves_no_setting_of_jax_behind(entering, make, kind):
    context = make()
    leave = functools.partial(context.__exit__, None, None, None)
    steps = [sender(kind), context.__enter__, leave]
    if not entering:
        context.__enter__()
        steps = [sender(kind), leave]
    with pytest.raises(Interrupt):
        moment([*map(operator.call, steps)])
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("make", [x64, lambda: precision([np.ones(())])])
def test_nothing_comes_between_a_setting_of_jax_and_the_note_of_what_it_was(make, monkeypatch):
    """What switches it on sends an interrupt in its last act."""
    send = sender("thread")

    def swap(*values: object) -> object:
        *_, value = values  # the first is the context if this is a method
        return [enable_x64.swap_local(value), *map(operator.call, [send])][0]

    class Switch:
        set_local, swap_local = enable_x64.set_local, staticmethod(swap)

    monkeypatch.setattr(x64, "_swap", swap)
    monkeypatch.setattr(jax_programs, "enable_x64", Switch)
    with pytest.raises(Interrupt), make():
        moment()
    assert not jax.config.jax_enable_x64


class Quiet(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Quiet, torch.no_grad, TorchFunctionMode])
@pytest.mark.parametrize("entering", [True, False])
def test_an_interrupt_leaves_no_mode_of_pytorchs_behind(kind, entering):
    def modes():
        stacks = get_current_dispatch_mode_stack(), get_current_function_mode_stack()
        return (*map(len, stacks), torch.is_grad_enabled())

    before, context = modes(), kind()
    leave = functools.partial(context.__exit__, None, None, None)
    steps = [sender("signal"), context.__enter__, leave]
    if not entering:
        context.__enter__()
        steps = [sender("signal"), leave]
    with pytest.raises(Interrupt):
        moment([*map(operator.call, steps)])
    assert modes() == before


CONTEXT = """
def use(context, call, first, then):
    with context([first]):
        [*map(call, [then])]


class Context:
    seen = []

    def __init__(self, calls):
        self.calls = calls

    def __enter__(self):
        self.seen.append("entered")
        [*map(lambda call: call(), self.calls)]

    def __exit__(self, *exception):
        self.seen.append("left")
"""


@pytest.mark.parametrize("kind", ["generator", "class"])
@pytest.mark.parametrize("entering", [True, False])
@pytest.mark.parametrize("library", [calque, torch, jax], ids=lambda library: library.__name__)
def test_an_interrupt_leaves_no_context_of_a_library_behind(library, entering, kind):
    names = {}
    exec(compile(CONTEXT, library.__file__, "exec"), names)
    seen = names["Context"].seen

    @contextmanager
    def context(calls):
        seen.append("entered")
        try:
            [*map(operator.call, calls)]
            yield
        finally:
            seen.append("left")

    send, nothing = sender("signal"), dict
    calls = (send, nothing) if entering else (nothing, send)
    used = context if kind == "generator" else names["Context"]
    with pytest.raises(Interrupt) as caught:  # keeps the frames alive
        names["use"](used, operator.call, *calls)
    assert seen == ["entered", "left"], caught


class Members(dict[str, nn.Parameter | None]):
    """The parameters of a module, which sends an interrupt when the given one of them is set."""

    moment = 0

    def __setitem__(self, name: str, value: nn.Parameter | None) -> None:
        super().__setitem__(name, value)
        self.moment -= 1
        if self.moment == 0:
            [*map(operator.call, [sender("signal")])]


class Last(nn.Module):
    """A module that sends an interrupt as it ends, if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        self.sends = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight + self.bias
        [*map(operator.call, [sender("signal")] if self.sends else [])]
        return y


def test_an_interrupt_leaves_no_replaced_parameters_behind():
    module, x = Last(), torch.ones(2)
    state = {n: p.detach() * 3 for n, p in module.named_parameters()}
    members = module._parameters = Members(module._parameters)
    before = dict(members)

    for number in range(1, 6):  # two replacements, the call, and two restorations
        members.moment, module.sends = number, number == 5
        with pytest.raises(Interrupt) as caught:
            moment(torch.func.functional_call(module, state, (x,)))
        assert all(members[name] is p for name, p in before.items()), (number, caught)


@pytest.mark.parametrize("error", [ValueError, Interrupt])
def test_an_interrupt_after_an_error_of_a_traced_function_does_not_keep_it_half_done(
    error, monkeypatch
):
    """As when Ctrl-C is pressed twice: the second arrives while the first goes through calque."""
    weight = nn.Parameter(torch.ones(2, device="jax"))
    optimizer, state = torch.optim.Adam([weight]), SimpleNamespace(count=0, log=[])

    @calque.jit
    def step(x, fails):
        state.count += 1
        (weight * x).sum().backward()
        optimizer.step()
        state.log.append(weight.detach().sum())
        if fails:
            torch.set_grad_enabled(False)
            raise error
        return x * state.count

    outside = tracing.without_values

    def interrupted(*args):
        _thread.interrupt_main(SIGNAL)
        moment()
        outside(*args)

    x = torch.ones(2, device="jax")
    for _ in range(2):
        monkeypatch.setattr(tracing, "without_values", interrupted)
        with pytest.raises(Interrupt):
            step(x, True)
        monkeypatch.undo()
        assert torch.is_grad_enabled()
        assert (state.count, state.log, weight.grad, len(optimizer.state)) == (0, [], None, 0)
        assert weight.tolist() == [1, 1]
    assert step(x, False).tolist() == [1, 1]
    assert state.count == len(state.log) == 1


class _Counting(nn.Module):
    """Changes its state, and sends an interrupt that comes as soon as none has to wait."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.fails, self.calls, self.last = fails, [], None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(1)
        self.last = x * 2
        torch.set_grad_enabled(False)
        if self.fails:
            raise ValueError
        return x + 1


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("of", [capture.StateWatch, assignments.Assignments])
def test_an_interrupt_after_a_traced_program_does_not_keep_what_it_has_changed(
    fails, of, monkeypatch
):
    module = _Counting(fails)
    name = "undo" if of is assignments.Assignments else "restore" if fails else "leave"
    real = getattr(of, name)

    def interrupted(*args):
        _thread.interrupt_main(SIGNAL)
        moment()
        return real(*args)

    monkeypatch.setattr(of, name, interrupted)
    with pytest.raises((Interrupt, ValueError, calque.TraceError)) as found:
        calque.trace(module, torch.ones(2))
    seen = [found.value, found.value.__context__]
    assert any(isinstance(one, Interrupt) for one in seen)
    assert (module.calls, module.last) == ([], None)
    assert torch.is_grad_enabled()


def test_a_trace_that_waits_for_another_threads_can_be_interrupted():
    begun, end = threading.Event(), threading.Event()

    def trace():
        with call_serialization.tracing():
            begun.set()
            end.wait(60)

    def late():
        time.sleep(0.2)
        signal.pthread_kill(threading.main_thread().ident, SIGNAL)

    other, clock = threading.Thread(target=trace), threading.Thread(target=late)
    other.start()
    begun.wait()
    try:
        clock.start()
        with pytest.raises(Interrupt):
            calque.jit(lambda x: x + 1)(torch.ones(2, device="jax"))
        assert not end.is_set()
        assert other.is_alive()
    finally:
        end.set()
        other.join()
        clock.join()
    assert calque.jit(lambda x: x + 1)(torch.ones(2, device="jax")).tolist() == [2, 2]


@pytest.mark.parametrize("kind", ["signal", "thread", "thread in a trace"])
def test_what_a_number_of_cpp_asks_is_entered_and_left_before_an_interrupt(kind):
    in_trace = kind.endswith("trace")
    number = traced_numbers.number_of(jax.numpy.ones(()), traced_numbers.Comparisons())
    send = sender(kind)
    for question in ("is_float", "is_int", "is_bool", "is_symbolic", "has_hint", "maybe_as_float"):
        ask = getattr(number.node, question)
        watching = Running(Snapshot()).watching() if in_trace else nullcontext()
        with pytest.raises(Interrupt) as caught, watching:
            moment([*map(operator.call, [send, ask])])
        names = {frame.name for frame in traceback.extract_tb(caught.value.__traceback__)}
        assert names.isdisjoint({ask.__func__.__code__.co_name, "on_call", "_on_audit"}), question


KEYS = [jax.ShapeDtypeStruct((2,), "float32") for _ in range(2)]


@pytest.mark.parametrize(
    "ask",
    [
        functools.partial(np.dtype, jax.numpy.float32),
        functools.partial(operator.eq, *KEYS),
        functools.partial(hash, KEYS[0]),
    ],
)
def test_an_interrupt_is_not_lost_in_questions_that_drop_exceptions(ask):
    found: list[object] = []
    with pytest.raises(Interrupt):
        moment(found.extend(map(operator.call, [sender("signal"), ask])))
    assert found == [None, ask()]


def test_an_interrupt_is_not_lost_in_a_finalizer():
    finalized: list[int] = []
    held = [nn.Identity()]
    weakref.finalize(held[0], lambda: finalized.append(len(held)))
    with pytest.raises(Interrupt):
        moment([*map(operator.call, [sender("signal"), held.clear])])
    assert finalized == [0]


def test_a_finalizer_that_is_called_can_be_interrupted():
    finalizer = weakref.finalize(moment, moment)
    with pytest.raises(Interrupt) as caught:
        moment([*map(operator.call, [sender("signal"), finalizer])])
    assert "__call__" in [frame.name for frame in traceback.extract_tb(caught.tb)]


def test_an_interrupt_does_not_lose_a_mode_that_is_popped_for_a_while():
    with TorchFunctionMode() as mode:
        context = torch.overrides._pop_mode_temporarily()
        leave = functools.partial(context.__exit__, None, None, None)
        context.__enter__()
        with pytest.raises(Interrupt):
            moment([*map(operator.call, [sender("signal"), leave])])
        assert get_current_function_mode_stack() == [mode]


DROPPED = """
class Finalized:
    def __init__(self, seen):
        self.seen = seen

    def __del__(self):
        self.seen.append("finalized")


def watched(value, seen, ref):
    return ref(value, lambda gone: seen.append("gone"))
"""


@pytest.mark.parametrize("library", [calque, torch], ids=lambda library: library.__name__)
def test_an_interrupt_is_not_lost_in_what_a_library_does_when_an_object_goes(library):
    names: dict[str, Any] = {}
    exec(compile(DROPPED, library.__file__, "exec"), names)
    seen: list[str] = []
    held = [names["Finalized"](seen), nn.Identity()]
    watched = names["watched"](held[1], seen, weakref.ref)
    with pytest.raises(Interrupt):
        moment([*map(operator.call, [sender("signal"), held.clear])])
    assert sorted(seen) == ["finalized", "gone"], watched


class Answering(TorchDispatchMode):
    """Takes note of the questions that it has answered."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[Any] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        moment()
        self.answered.append(func)


@pytest.mark.parametrize("around", [lambda f: f, torch._disable_dynamo, count])
@pytest.mark.parametrize("question", [torch.ops.prim.device.default, torch.ops.prim.layout.default])
def test_what_cpp_asks_about_a_tensor_is_answered_before_an_interrupt(question, around):
    """Where it asks for a tensor's device it takes no exception, and the process would end."""
    mode, answer = Answering(), around(Answering.__torch_dispatch__)
    answer(mode, None, ())  # the first call makes PyTorch import modules
    mode.answered.clear()
    ask = functools.partial(answer, mode, question, ())
    with pytest.raises(Interrupt):
        moment([*map(operator.call, [sender("signal"), ask])])
    assert mode.answered == [question]
    ask = functools.partial(answer, mode, torch.ops.aten.add.Tensor, ())
    with pytest.raises(Interrupt):
        moment([*map(operator.call, [sender("signal"), ask])])
    assert mode.answered == [question]


def test_a_long_step_is_not_slowed_down_by_a_signal_that_waits():
    """It is asked again and again at first, and then from time to time."""
    seen: list[int] = []

    class Waiting(interrupts.Handler):
        __slots__ = ()

        @property
        def __call__(self) -> Callable[..., Any]:
            seen.append(1)
            return super().__call__

    @settles
    def step() -> None:
        [*map(operator.call, [sender("signal")])]
        for _ in range(20 * interrupts._AT_ONCE):
            moment()

    signal.signal(SIGNAL, Waiting(SIGNAL, interrupt))

    def run() -> None:
        step()
        time.sleep(60)  # until a signal arrives

    with pytest.raises(Interrupt):
        run()
    assert interrupts._AT_ONCE < len(seen) < 10 * interrupts._AT_ONCE


@settles
def a_long_step(done: list[int]) -> None:
    [*map(operator.call, [sender("signal")])]
    for _ in range(3 * interrupts._AT_ONCE):
        moment()
    done.append(1)


def test_a_signal_that_waits_for_a_long_step_comes_when_it_ends(monkeypatch):
    """If it were only sent again from time to time, it would rarely arrive between two steps."""
    monkeypatch.setattr(interrupts, "_make_pending_soon", lambda handler: None)
    done: list[int] = []

    def run() -> None:
        for _ in range(3):
            a_long_step(done)

    with pytest.raises(Interrupt):
        run()
    assert done == [1]


def test_a_signal_that_comes_when_a_step_ends_is_not_sent_again(monkeypatch):
    monkeypatch.setattr(interrupts, "_SOON", 0.05)
    arrived: list[int] = []
    signal.signal(SIGNAL, lambda kind, _: arrived.append(kind))
    a_long_step([])
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        moment()
    assert arrived == [SIGNAL]


def test_signals_that_wait_together_take_turns(monkeypatch):
    """Each comes again while the others find out whether they have to wait."""
    kinds = (SIGNAL, signal.SIGUSR2, signal.SIGALRM)
    within, deepest, moments, more = [0], [0], [0], [True]
    has_to_wait = interrupts._has_to_wait

    def counting(frame: Any) -> bool:
        within[0] += 1
        deepest[0] = max(deepest[0], within[0])
        for kind in kinds if more[0] else ():
            [*map(operator.call, [functools.partial(_thread.interrupt_main, kind)])]
        moment()
        found = has_to_wait(frame)
        within[0] -= 1
        return found

    @settles
    def step() -> None:
        [*map(operator.call, [sender("signal")])]
        for _ in range(20):
            moment()
            moments[0] += 1
        more[0] = False

    arrived: list[int] = []
    before = {kind: signal.signal(kind, lambda kind, _: arrived.append(kind)) for kind in kinds}
    try:
        with monkeypatch.context() as patch:
            patch.setattr(interrupts, "_has_to_wait", counting)
            step()
        moment()
        assert deepest == [1]
        assert moments == [20]
        assert set(arrived) == set(kinds)
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


LAZY = """
def use(name):
    return __import__(name)
"""


@pytest.mark.parametrize("library", [calque, torch, jax], ids=lambda library: library.__name__)
def test_an_interrupt_leaves_no_half_imported_package_behind(library, tmp_path, monkeypatch):
    package = f"imported_by_{library.__name__}"
    names: dict[str, Any] = {}
    module = tmp_path / package / "__init__.py"
    module.parent.mkdir()
    module.write_text("from tests.device.test_interrupts import send\nsend()\nwhole = 1")
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(LAZY, library.__file__, "exec"), names)
    with pytest.raises(Interrupt):
        moment(names["use"](package))
    assert sys.modules.pop(package).whole == 1
    with pytest.raises(Interrupt):  # what a program imports itself may take as long as it likes
        moment(importlib.import_module(package))
    assert package not in sys.modules


def send() -> None:
    """Send an interrupt, and give it a moment to come."""
    [*map(operator.call, [sender("signal")])]
    moment()


LOOP = """
def loop(steps):
    for step in steps:
        if step is not None:
            [*step]
"""


def test_an_interrupt_in_a_library_belongs_to_a_line():
    """Python 3.11 looks for signals where that loop goes back to its top, which no line does."""
    names: dict[str, Any] = {}
    exec(compile(LOOP, calque.__file__, "exec"), names)
    with pytest.raises(Interrupt) as caught:
        moment(names["loop"]([map(operator.call, [sender("signal")]), [], None]))
    trace = traceback.walk_tb(caught.value.__traceback__)
    assert None not in [line for _, line in trace]


def test_an_interrupt_is_not_lost_in_what_is_called_at_a_fork():
    done: list[int] = []

    def callback() -> None:
        moment()
        done.append(1)

    process = SimpleNamespace()
    process.fork = functools.partial(list, map(operator.call, [sender("signal"), callback]))
    with pytest.raises(Interrupt):
        moment(process.fork())
    assert done == [1]
    process.copy = functools.partial(list, map(operator.call, [sender("signal"), callback]))
    with pytest.raises(Interrupt):
        moment(process.copy())
    assert done == [1]


def test_an_interrupt_is_not_lost_in_a_guard_of_a_compiled_function(monkeypatch):
    """C++ takes an exception in a guard for a no, and the function would be compiled again."""
    calls: list[Callable[[], object]] = []

    def hooks() -> None:  # compared by a guard
        [*map(operator.call, calls)]
        moment()

    module = importlib.import_module("torch._functorch._aot_autograd.utils")
    monkeypatch.setattr(module, "top_saved_tensors_hooks", hooks)
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        graphs.append(inputs)
        return graph.forward

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    x = torch.ones(2)
    compiled(x)
    calls.append(sender("signal"))
    with pytest.raises(Interrupt):
        compiled(x)
    calls.clear()
    assert compiled(x).tolist() == [2, 2]
    assert len(graphs) == 1
