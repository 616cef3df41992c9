"""Functions that pass work to other threads, whose operators are no part of the trace."""

import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from queue import SimpleQueue

import pytest
import torch

import calque

pytestmark = pytest.mark.filterwarnings("ignore::calque.RetraceWarning")


def double(x):
    return x * 2


def by_a_thread(x):
    found = []
    thread = threading.Thread(target=lambda: found.append(double(x)))
    thread.start()
    thread.join()
    return found[0]


def by_an_executor(x):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(double, x).result()


def by_a_pool(x):
    with ThreadPool(1) as pool:
        return pool.map(double, [x])[0]


def through_an_event(x):
    found, done = [], threading.Event()
    threading.Thread(target=lambda: (found.append(double(x)), done.set())).start()
    done.wait()
    return found[0]


@pytest.mark.parametrize("program", [by_a_thread, by_an_executor, by_a_pool, through_an_event])
def test_what_another_thread_computes_is_computed_in_each_call(program):
    step = calque.jit(program)
    for i in range(4):
        assert step(torch.full((2,), float(i), device="jax")).tolist() == [2 * i, 2 * i]


def test_a_queue_to_a_thread_that_waits_for_it():
    given, found = SimpleQueue(), SimpleQueue()

    def work():
        while (x := given.get()) is not None:
            found.put(x * 2)

    @calque.jit
    def step(x):
        given.put(x)
        return found.get()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for i in range(4):
            assert step(torch.full((2,), float(i), device="jax")).tolist() == [2 * i, 2 * i]
    finally:
        given.put(None)
        thread.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("asks", [True, False])
def test_the_error_of_a_thread_that_uses_a_traced_tensor_is_raised(asks):
    @calque.jit
    def step(x):
        y, found = x + 1, []
        thread = threading.Thread(target=lambda: found.append(double(y)))
        thread.start()
        thread.join()
        return found[0] if asks else x

    for _ in range(2):
        with pytest.raises(calque.TraceError, match="in double: .* is still traced while other"):
            step(torch.ones(2, device="jax"))
