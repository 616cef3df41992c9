"""Changing what Python itself keeps, and objects whose end is noticed."""

import atexit
import contextvars
import gc
import os
import signal
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("writes", "jit rows")
Seen = Iterator[Any]


def _sets(case: Case, change: Callable[[], object], read: Any, back: Callable[[], object]) -> Seen:
    """What the function sets, which is set back after each call."""
    case.undo(back)

    def f(x):
        change()
        return x * 2

    f = case.fn(f)
    for _ in range(4):
        yield f(case.x), read()
        back()


@program(each_call=True)
def collector_switched_off(case: Case) -> Seen:
    yield from _sets(case, gc.disable, gc.isenabled, gc.enable)


@program(each_call=True)
def limit_of_recursion_set(case: Case) -> Seen:
    limit = sys.getrecursionlimit()
    yield from _sets(
        case,
        lambda: sys.setrecursionlimit(limit + 77),
        lambda: sys.getrecursionlimit() - limit,
        lambda: sys.setrecursionlimit(limit),
    )


@program(each_call=True)
def errors_of_numpy_set(case: Case) -> Seen:
    before = np.geterr()
    yield from _sets(
        case, lambda: np.seterr(divide="ignore"), np.geterr, lambda: np.seterr(**before)
    )


@program(each_call=True)
def directory_changed(case: Case) -> Seen:
    before = os.getcwd()
    yield from _sets(case, lambda: os.chdir("/"), os.getcwd, lambda: os.chdir(before))


@program(each_call=True)
def handler_of_a_signal_set(case: Case) -> Seen:
    one = signal.SIGUSR1
    yield from _sets(
        case,
        lambda: signal.signal(one, signal.SIG_IGN),
        lambda: str(signal.getsignal(one)),
        lambda: signal.signal(one, signal.SIG_DFL),
    )


@program(each_call=True)
def function_for_the_end_registered(case: Case) -> Seen:
    def end(): ...

    before = atexit._ncallbacks()
    yield from _sets(
        case,
        lambda: atexit.register(end),
        lambda: atexit._ncallbacks() - before,
        lambda: atexit.unregister(end),
    )


@program(each_call=True)
def semaphore_acquired(case: Case) -> Seen:
    s = threading.Semaphore(2)
    f = case.fn(lambda x: x * 2 if s.acquire(blocking=False) else x)
    for _ in range(4):
        yield f(case.x), s._value
    s.release()
    yield f(case.x), s._value


@program
def lock_entered(case: Case) -> Seen:
    lock, log = threading.Lock(), types.SimpleNamespace(last=0)

    def f(x):
        with lock:
            log.last = 1
        return x * 2

    f = case.fn(f)
    for _ in range(3):
        log.last = 0
        yield f(case.x), log.last, lock.locked()


@program(each_call=True)
def variable_set_in_a_context_of_ones_own(case: Case) -> Seen:
    variable = contextvars.ContextVar("variable", default=1.0)
    context = contextvars.copy_context()

    def f(x):
        context.run(variable.set, context.run(variable.get) + 1)
        return x * 2

    f = case.fn(f)
    for _ in range(4):
        yield f(case.x), context.get(variable)


@program(each_call=True)
def object_with_an_end_returned(case: Case) -> Seen:
    ended = []

    class Span:
        def __init__(self, tensor):
            self.tensor = tensor

        def __del__(self):
            ended.append("ended")

    f = case.fn(lambda x: Span(x * 2))
    for i in range(3):
        span = f(case.x + i)
        yield span.tensor, list(ended)
        del span
        yield list(ended)


@program(each_call=True)
def object_with_an_end_kept(case: Case) -> Seen:
    ended = []

    class Span:
        def __init__(self, tensor):
            self.tensor = tensor

        def __del__(self):
            ended.append("ended")

    trainer = types.SimpleNamespace(span=None)

    def f(x):
        trainer.span = Span(x * 2)
        return x * 3

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i), trainer.span.tensor, len(ended) < 3


@program(each_call=True)
def object_referred_to_weakly_kept(case: Case) -> Seen:
    class Held: ...

    dead = []
    trainer = types.SimpleNamespace(held=None, weak=None)

    def f(x):
        trainer.held = Held()
        trainer.weak = weakref.ref(trainer.held, dead.append)
        return x * 2

    f = case.fn(f)
    yield f(case.x), trainer.weak() is trainer.held, list(dead)
    for _ in range(3):
        yield f(case.x), trainer.weak() is trainer.held
