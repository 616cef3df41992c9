"""L3: iterators, files and streams that are read on at every call."""

import builtins
import copy
import io
import itertools
import operator
import os
import pathlib
import random
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

_row = group("differs", "eager jit rows trace")
Seen = Iterator[Any]


def program(body):
    """A program that is traced at each call."""
    return _row(each_call=True)(body)


@program
def next_of_an_iterator_of_a_list(case: Case) -> Seen:
    values = iter([2.0, 3.0, 5.0, 7.0])
    f = case.fn(lambda x: x * next(values))
    for _ in range(4):
        yield f(case.x)


@program
def next_of_a_generator(case: Case) -> Seen:
    def gains():
        gain = 1.0
        while True:
            gain *= 2
            yield gain

    source = gains()
    f = case.fn(lambda x: x * next(source))
    for _ in range(4):
        yield f(case.x)


@program
def next_of_a_count(case: Case) -> Seen:
    steps = itertools.count()
    f = case.fn(lambda x: x + next(steps))
    for _ in range(4):
        yield f(case.x)
    next(steps)
    yield f(case.x)


@program
def next_of_a_cycle(case: Case) -> Seen:
    acts = itertools.cycle([torch.sin, torch.cos])
    f = case.fn(lambda x: next(acts)(x))
    for _ in range(5):
        yield f(case.x)


@program
def zip_and_enumerate_and_chain(case: Case) -> Seen:
    pairs = zip(itertools.count(1), itertools.chain("ab", "cd", "ef"))
    numbered = enumerate(range(10, 100))

    def f(x):
        i, letter = next(pairs)
        j, value = next(numbered)
        return x * i + ord(letter) + j + value

    f = case.fn(f)
    for _ in range(4):
        yield f(case.x)


@program
def iterator_with_a_default(case: Case) -> Seen:
    warm = iter([0.1, 0.5])
    f = case.fn(lambda x: x * next(warm, 1.0))
    for _ in range(4):
        yield f(case.x)


@program
def iterator_class_of_the_user(case: Case) -> Seen:
    class Ramp:
        def __init__(self):
            self.i = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.i += 1
            return self.i

    ramp = Ramp()
    f = case.fn(lambda x: x * next(ramp))
    for _ in range(4):
        yield f(case.x), ramp.i


@program
def map_over_a_shared_iterator(case: Case) -> Seen:
    source = iter(range(100))
    squares = map(str, source)
    f = case.fn(lambda x: x + int("".join(itertools.islice(squares, 2))))
    for _ in range(4):
        yield f(case.x)


@program
def batches_of_a_loader(case: Case) -> Seen:
    loader = iter(torch.utils.data.DataLoader([1.0, 2.0, 3.0, 4.0], batch_size=1))
    f = case.fn(lambda x: x * next(loader).to(x.device))
    for _ in range(3):
        yield f(case.x)


@program
def generator_that_is_sent_values(case: Case) -> Seen:
    def average():
        total = n = 0
        while True:
            value = yield total / max(n, 1)
            total, n = total + value, n + 1

    running = average()
    next(running)

    def f(x):
        return x * running.send(x.shape[0])

    f = case.fn(f)
    for n in (1, 2, 3):
        yield f(case.x[:n])


@program
def lines_of_a_file(case: Case) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "gains.txt")
        path.write_text("2\n3\n5\n7\n")
        with path.open() as lines:
            f = case.fn(lambda x: x * float(lines.readline()))
            for _ in range(4):
                yield f(case.x)


@program
def file_that_is_rewritten(case: Case) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "gain.txt")

        def f(x):
            with open(path) as file:
                return x * float(file.read())

        f = case.fn(f)
        for gain in (2, 2, 3, 5, 2):
            path.write_text(str(gain))
            yield f(case.x)


@program
def path_that_is_read(case: Case) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "gain.txt")
        f = case.fn(lambda x: x * float(path.read_text()))
        for gain in (2, 2, 3, 5):
            path.write_text(str(gain))
            yield f(case.x)


@program
def file_that_exists_or_not(case: Case) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        flag = os.path.join(folder, "stop")
        f = case.fn(lambda x: x * 0 if os.path.exists(flag) else x)
        yield f(case.x)
        yield f(case.x)
        open(flag, "w").close()
        yield f(case.x)
        os.remove(flag)
        yield f(case.x)


@program
def lines_written_to_a_file(case: Case) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "log.txt")

        def f(x):
            with path.open("a") as file:
                file.write(f"{tuple(x.shape)}\n")
            return x * 2

        f = case.fn(f)
        for _ in range(4):
            yield f(case.x), path.read_text()


@program
def text_stream_in_memory(case: Case) -> Seen:
    stream = io.StringIO("2\n3\n5\n7\n")
    f = case.fn(lambda x: x * float(stream.readline()))
    for _ in range(4):
        yield f(case.x), stream.tell()


@program
def text_written_to_memory(case: Case) -> Seen:
    out = io.StringIO()

    def f(x):
        print("shape", tuple(x.shape), file=out)
        return x * 2

    f = case.fn(f)
    for _ in range(4):
        yield f(case.x), out.getvalue()


@program
def input_of_the_user(case: Case) -> Seen:
    answers = iter(["2", "3", "5"])
    case.patch(builtins, "input", lambda prompt="": next(answers))
    f = case.fn(lambda x: x * float(input("gain: ")))
    for _ in range(3):
        yield f(case.x)


@program
def generator_of_pytorch_on_the_cpu(case: Case) -> Seen:
    generator = torch.Generator().manual_seed(4)
    f = case.fn(lambda x: x + torch.rand(3, generator=generator).to(x.device))
    for _ in range(4):
        yield f(case.x)
    generator.manual_seed(4)
    yield f(case.x)


@program
def random_crop_of_python(case: Case) -> Seen:
    def f(x):
        i = random.randint(0, 1)
        return x[i : i + 2] * 2

    f = case.fn(f)
    random.seed(2)
    for _ in range(6):
        yield f(case.x)


@program
def stochastic_depth_in_a_module(case: Case) -> Seen:
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.rng = np.random.default_rng(1)

        def forward(self, x):
            if self.training and self.rng.random() < 0.5:
                return x
            return self.linear(x)

    m = case.on(Block())
    f = case.fn(m)
    for _ in range(4):
        yield f(case.x)
    m.eval()
    yield f(case.x)


@_row(each_call=True, modes="eager jit rows")
def copies_of_iterators_that_the_loop_advances(case: Case) -> Seen:
    def counted():
        n = 0
        while True:
            n += 1
            yield n

    state = SimpleNamespace(
        items=iter([2.0, 3.0, 5.0, 7.0]), steps=itertools.count(), counted=counted()
    )
    first = case.fn(lambda x: x * next(copy.copy(state.items)) + next(copy.copy(state.steps)))
    left = case.fn(lambda x: x * operator.length_hint(state.items))
    seen = case.fn(lambda x: x * state.counted.gi_frame.f_locals["n"])
    drawing = np.random.default_rng(3)
    drawn = case.fn(lambda x: x * float(copy.deepcopy(drawing).random()))
    next(state.counted)
    for _ in range(4):
        yield first(case.x), left(case.x), seen(case.x), drawn(case.x)
        next(state.items), next(state.steps), next(state.counted), drawing.random()
