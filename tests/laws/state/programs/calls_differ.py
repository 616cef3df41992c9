"""L3: what differs from call to call: drawn, read and counted at every call."""

import _thread
import datetime
import os
import random
import secrets
import signal
import threading
import time
import types
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tests.laws.state.case import Case
from tests.laws.state.table import group

_row = group("differs", "eager jit rows trace")
Seen = Iterator[Any]


def program(body):
    """A program that is traced at each call."""
    return _row(each_call=True)(body)


def unseen_by_rows(body):
    """A program whose differences only a second trace can find."""
    return _row(each_call=True, modes="eager jit trace")(body)


@program
def random_of_python(case: Case) -> Seen:
    f = case.fn(lambda x: x * random.random())
    random.seed(1)
    for _ in range(4):
        yield f(case.x), random.getstate()[1][-1]


@program
def choice_and_shuffle(case: Case) -> Seen:
    names = ["sin", "cos", "neg", "exp"]

    def f(x):
        random.shuffle(names)
        return getattr(torch, random.choice(names))(x)

    f = case.fn(f)
    random.seed(1)
    for _ in range(4):
        yield f(case.x), names


@program
def drop_a_layer_at_random(case: Case) -> Seen:
    layers = [torch.sin, torch.cos, torch.tanh]

    def f(x):
        for layer in layers:
            if random.uniform(0, 1) < 0.5:
                x = layer(x)
        return x

    f = case.fn(f)
    random.seed(3)
    for _ in range(5):
        yield f(case.x)


@program
def a_random_generator_of_ones_own(case: Case) -> Seen:
    rng = random.Random(5)
    f = case.fn(lambda x: x + rng.randint(0, 100))
    for _ in range(4):
        yield f(case.x)
    rng.seed(5)
    yield f(case.x)


@program
def random_state_that_is_only_read(case: Case) -> Seen:
    rng = random.Random(5)
    f = case.fn(lambda x: x + rng.getstate()[1][-1])
    for _ in range(3):
        yield f(case.x)
        rng.random()


@program
def legacy_random_of_numpy(case: Case) -> Seen:
    f = case.fn(lambda x: x * float(np.random.rand()) + int(np.random.randint(9)))
    np.random.seed(1)
    for _ in range(4):
        yield f(case.x)


@program
def random_generator_of_numpy(case: Case) -> Seen:
    rng = np.random.default_rng(3)
    f = case.fn(lambda x: x * float(rng.normal()))
    for _ in range(4):
        yield f(case.x)


@program
def random_state_of_numpy_in_an_attribute(case: Case) -> Seen:
    s = types.SimpleNamespace(rng=np.random.RandomState(3))
    f = case.fn(lambda x: x * s.rng.uniform())
    for _ in range(3):
        yield f(case.x)
    s.rng = np.random.RandomState(3)
    yield f(case.x)


@program
def noise_from_numpy_as_a_tensor(case: Case) -> Seen:
    rng = np.random.default_rng(3)
    f = case.fn(lambda x: x + torch.tensor(rng.normal(size=3), dtype=x.dtype, device=x.device))
    for _ in range(4):
        yield f(case.x)


@program
def seed_drawn_for_pytorch(case: Case) -> Seen:
    drawn: list[int] = []

    def f(x):
        drawn.append(random.getrandbits(16))
        return x * drawn[-1]

    f = case.fn(f)
    random.seed(1)
    for _ in range(3):
        yield f(case.x), drawn


@unseen_by_rows
def clocks_with_nanoseconds(case: Case) -> Seen:
    for clock in (time.perf_counter_ns, time.time_ns, time.monotonic_ns):
        f = case.fn(lambda x, clock=clock: x * 0 + clock() % 1_000_003)
        yield len({f(case.x)[0].item() for _ in range(5)}) > 2


@unseen_by_rows
def clock_and_date(case: Case) -> Seen:
    f = case.fn(lambda x: x * 0 + datetime.datetime.now().microsecond)
    g = case.fn(lambda x: x.double() * 0 + time.perf_counter() % 1000)
    for h in (f, g, f):
        yield len({h(case.x)[0].item() for _ in range(5)}) > 2


@program
def time_since_the_last_call(case: Case) -> Seen:
    now = iter(range(0, 1000, 7))
    s = types.SimpleNamespace(last=0, clock=lambda: next(now))

    def f(x):
        t = s.clock()
        passed, s.last = t - s.last, t
        return x * passed

    f = case.fn(f)
    for _ in range(4):
        yield f(case.x), s.last


@unseen_by_rows
def names_that_are_unique(case: Case) -> Seen:
    names: list[str] = []

    def f(x):
        names.append(uuid.uuid4().hex)
        return x + 1

    f = case.fn(f)
    for _ in range(4):
        yield f(case.x), len(set(names))


@unseen_by_rows
def random_bytes_of_the_system(case: Case) -> Seen:
    f = case.fn(lambda x: x.double() * 0 + int.from_bytes(os.urandom(6), "big"))
    yield len({f(case.x)[0].item() for _ in range(5)}) > 3
    g = case.fn(lambda x: x.double() * 0 + secrets.randbelow(10**9))
    yield len({g(case.x)[0].item() for _ in range(5)}) > 3
    yield len({f(case.x)[0].item() for _ in range(5)}) > 3


def _signalled(case: Case, send: Any) -> Seen:
    received: list[int] = []
    case.undo(signal.signal, signal.SIGUSR1, signal.getsignal(signal.SIGUSR1))
    signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))

    def f(x):
        send(signal.SIGUSR1)
        return x + 1

    f = case.fn(f)
    for _ in range(4):
        y = f(case.x)
        yield y, received


@program
def signal_raised(case: Case) -> Seen:
    yield from _signalled(case, signal.raise_signal)


@program
def signal_sent_to_the_thread(case: Case) -> Seen:
    this = threading.get_ident()
    yield from _signalled(case, lambda number: signal.pthread_kill(this, number))


@program
def main_thread_interrupted(case: Case) -> Seen:
    yield from _signalled(case, _thread.interrupt_main)
