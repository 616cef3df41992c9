"""Reading what Python itself keeps: locks, futures, settings, objects of its library."""

import asyncio
import calendar
import concurrent.futures
import contextvars
import csv
import ctypes
import functools
import gc
import hashlib
import logging
import multiprocessing
import queue
import reprlib
import signal
import socket
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

import mpmath
import numpy as np
import sympy

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("reads", "jit rows")
Seen = Iterator[Any]


def _read(case: Case, read: Callable[[], float], *changes: Callable[[], object]) -> Seen:
    """The tensor times what is read, twice after each change."""
    f = case.fn(lambda x: x * read())
    yield f(case.x)
    yield f(case.x)
    for change in changes:
        change()
        yield f(case.x)
        yield f(case.x)


def _setting(owner: Any, name: str, *values: Any) -> list[Callable[[], None]]:
    return [functools.partial(setattr, owner, name, value) for value in values]


@program(states=3)
def count_of_a_semaphore(case: Case) -> Seen:
    s = threading.Semaphore(2)
    yield from _read(case, lambda: s._value, s.release, s.release)


@program(states=2)
def lock_that_is_held(case: Case) -> Seen:
    lock = threading.Lock()
    yield from _read(case, lambda: 2.0 if lock.locked() else 3.0, lock.acquire, lock.release)


@program(states=2)
def future_that_is_done(case: Case) -> Seen:
    future: Any = concurrent.futures.Future()
    yield from _read(case, lambda: 2.0 if future.done() else 3.0, lambda: future.set_result(1))


@program(states=2)
def length_of_a_simple_queue(case: Case) -> Seen:
    q: Any = queue.SimpleQueue()
    yield from _read(case, lambda: q.qsize() + 1, lambda: q.put(1), lambda: q.get())


@program(states=2)
def event_and_queue_of_a_loop(case: Case) -> Seen:
    event, q = asyncio.Event(), asyncio.Queue()
    yield from _read(case, lambda: event.is_set() + 2 * q.qsize() + 1, event.set)
    yield from _read(case, lambda: event.is_set() + 2 * q.qsize() + 1, lambda: q.put_nowait(1))


@program(states=3)
def name_of_the_thread_and_the_process(case: Case) -> Seen:
    thread, process = threading.current_thread(), multiprocessing.current_process()
    case.undo(setattr, thread, "name", thread.name)
    case.undo(setattr, process, "name", process.name)

    def read():
        name = threading.current_thread().name + multiprocessing.current_process().name
        return len(name)

    changes = _setting(thread, "name", "evaluation") + _setting(process, "name", "first of all")
    yield from _read(case, read, *changes)


@program(states=3)
def object_behind_functions_of_a_module(case: Case) -> Seen:
    case.undo(calendar.setfirstweekday, calendar.firstweekday())
    case.undo(setattr, reprlib.aRepr, "maxlist", reprlib.aRepr.maxlist)
    values = list(range(50))
    yield from _read(
        case,
        lambda: calendar.firstweekday() + len(reprlib.repr(values)),
        lambda: calendar.setfirstweekday(6),
        *_setting(reprlib.aRepr, "maxlist", 2),
    )


@program(states=2)
def table_of_a_module_of_python(case: Case) -> Seen:
    case.undo(logging.addLevelName, 20, "INFO")
    change = functools.partial(logging.addLevelName, 20, "INFORMATION")
    yield from _read(case, lambda: len(logging.getLevelName(20)), change)


@program(each_call=True)
def settings_that_only_functions_tell(case: Case) -> Seen:
    case.undo(csv.field_size_limit, csv.field_size_limit())
    yield from _read(case, csv.field_size_limit, lambda: csv.field_size_limit(5))


@program(states=2)
def reentrant_lock_that_is_held(case: Case) -> Seen:
    lock = threading.RLock()
    yield from _read(case, lambda: 2.0 if lock._is_owned() else 3.0, lock.acquire, lock.release)


@program(each_call=True)
def locks_released(case: Case) -> Seen:
    one, other = threading.Lock(), threading.RLock()

    def f(x):
        one.release()
        other.release()
        return x * 2

    f = case.fn(f)
    for _ in range(4):
        one.acquire()
        other.acquire()
        yield f(case.x), one.locked(), other._is_owned()


class _Twos:
    """An iterator that tells nothing of its state, with other words each time."""

    __slots__ = ()

    def __iter__(self):
        return self

    def __next__(self):
        return 2.0

    def __reduce__(self):
        return _Twos, (), object()


@program(states=1)
def iterator_whose_reduction_differs(case: Case) -> Seen:
    twos = _Twos()
    yield from _read(case, lambda: next(twos), lambda: next(twos))


@program(states=2)
def digest_of_a_hash_object(case: Case) -> Seen:
    found = hashlib.sha256(b"one")
    yield from _read(case, lambda: found.digest()[0] + 1, lambda: found.update(b"two"))


@program(states=3)
def settings_in_c(case: Case) -> Seen:
    case.undo(socket.setdefaulttimeout, None)
    case.undo(gc.enable)

    def read():
        return (socket.getdefaulttimeout() or 1) + gc.isenabled()

    yield from _read(case, read, lambda: socket.setdefaulttimeout(6), gc.disable)


@program(states=2)
def a_reader_of_a_setting_in_a_container(case: Case) -> Seen:
    case.undo(gc.enable)
    readers = {"gc": gc.isenabled}
    yield from _read(case, lambda: 1 + readers["gc"](), gc.disable)


@program(states=2)
def a_reader_of_a_setting_as_a_default(case: Case) -> Seen:
    case.undo(gc.enable)

    def read(enabled=gc.isenabled):
        return 1 + enabled()

    yield from _read(case, read, gc.disable)


@program(states=2)
def handler_of_a_signal(case: Case) -> Seen:
    one = signal.SIGUSR1
    case.undo(signal.signal, one, signal.getsignal(one))
    yield from _read(
        case,
        lambda: 2.0 if signal.getsignal(one) == signal.SIG_IGN else 3.0,
        lambda: signal.signal(one, signal.SIG_IGN),
    )


@program(states=3)
def variable_in_a_context_of_ones_own(case: Case) -> Seen:
    variable = contextvars.ContextVar("variable", default=1.0)
    context = contextvars.copy_context()
    changes = [functools.partial(context.run, variable.set, value) for value in (2.0, 3.0)]
    yield from _read(case, lambda: context.run(variable.get), *changes)


@program(states=3)
def tree_of_elements(case: Case) -> Seen:
    tree = ElementTree.fromstring("<a w='2'><b>3</b></a>")
    yield from _read(
        case,
        lambda: float(tree.attrib["w"]) + float(tree[0].text or 0),
        lambda: tree.set("w", "4"),
        *_setting(tree[0], "text", "8"),
    )


@program(states=2)
def finalizer_that_is_alive(case: Case) -> Seen:
    class Held: ...

    held = Held()
    finalizer = weakref.finalize(held, list)
    yield from _read(case, lambda: 2.0 if finalizer.alive else 3.0, finalizer.detach)


@program(states=3)
def polynomial_of_numpy(case: Case) -> Seen:
    p = np.poly1d([1.0, 2.0])
    changes = [functools.partial(p.__setitem__, 0, value) for value in (5.0, 7.0)]
    yield from _read(case, lambda: float(p(1.0)), *changes)


@program(states=2)
def array_that_may_be_written(case: Case) -> Seen:
    held = types.SimpleNamespace(array=np.array([1.0, 2.0]))
    change = functools.partial(held.array.setflags, write=False)
    yield from _read(case, lambda: 2.0 if held.array.flags.writeable else 3.0, change)


@program(states=3)
def memory_of_ctypes(case: Case) -> Seen:
    class Both(ctypes.Structure):
        _fields_ = (("a", ctypes.c_double), ("b", ctypes.c_double))

    both, one = Both(2.0, 3.0), ctypes.c_double(1.0)
    changes = _setting(both, "b", 5.0) + _setting(one, "value", 6.0)
    yield from _read(case, lambda: both.b + one.value, *changes)


@program(states=3)
def attribute_of_a_partial(case: Case) -> Seen:
    partial: Any = functools.partial(float)
    partial.scale = 2.0
    yield from _read(case, lambda: partial.scale, *_setting(partial, "scale", 3.0, 4.0))


@program(states=3)
def matrix_of_a_package_that_pytorch_uses(case: Case) -> Seen:
    matrix, precise = sympy.Matrix([[1, 2]]), mpmath.mp
    case.undo(setattr, precise, "dps", precise.dps)
    yield from _read(
        case,
        lambda: float(str(matrix[0, 0])) + mpmath.mp.dps,
        functools.partial(matrix.__setitem__, (0, 0), 5),
        *_setting(precise, "dps", 30),
    )
