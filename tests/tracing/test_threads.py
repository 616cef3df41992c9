"""Traces in several threads do not see each other, nor does anybody else see them."""

import math
import sys
import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

import calque
from calque.tracing import fx
from calque.tracing.core import patching
from calque.tracing.core.compiled import as_written
from calque.tracing.core.patching import Patches
from calque.tracing.proxies.modules import hold_modules

X = torch.ones(2, 3)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu() + math.sqrt(4.0)


def run_together(*programs: Callable[[], None]) -> list[BaseException]:
    errors: list[BaseException] = []

    def guarded(program: Callable[[], None]) -> None:
        try:
            program()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(program,)) for program in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_models_are_traced_and_run_at_the_same_time() -> None:
    def traces() -> None:
        for _ in range(10):
            model = Model()
            for trace in (fx.symbolic_trace, calque.symbolic_trace, lambda m: calque.trace(m, X)):
                torch.testing.assert_close(trace(model)(X), model(X))

    def runs() -> None:
        model = Model()
        expected = model(X)
        for _ in range(200):
            torch.testing.assert_close(model(X), expected)

    assert run_together(traces, traces, runs) == []
    assert patching._installed == {}


def test_another_thread_runs_a_model_while_it_is_traced() -> None:
    model = Model()
    expected = model(X)

    def run() -> None:
        torch.testing.assert_close(model(X), expected)

    class Meets(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert run_together(run) == []
            return x + 1

    graph = calque.symbolic_trace(Meets())
    assert [node.op for node in graph.graph.nodes] == ["placeholder", "call_function", "output"]


def test_torch_compile_compiles_again_after_traces_that_overlap() -> None:
    torch.compile(Model(), backend="eager")  # imports dynamo
    first, second, over = threading.Event(), threading.Event(), threading.Event()

    def early() -> None:
        with as_written():
            first.set()
            assert second.wait(60)
        over.set()

    def late() -> None:
        assert first.wait(60)
        with as_written():
            second.set()
            assert over.wait(60)

    assert run_together(early, late) == []
    seen = []

    def backend(module: torch.fx.GraphModule, args: list[torch.Tensor]) -> object:
        seen.append(module)
        return module.forward

    torch.compile(lambda x: x + 1, backend=backend)(X)
    assert seen


def test_a_replacement_stays_until_its_last_holder_is_gone() -> None:
    names = {"f": original} if (original := (lambda: 1)) else {}
    first, second = Patches(), Patches()
    first.hold(names, "f", lambda f: lambda: f() + 1)
    replacement = names["f"]
    second.hold(names, "f", lambda f: lambda: f() + 5)
    first.release()
    assert names["f"] is replacement
    second.release()
    assert names["f"] is original


def test_somebody_elses_replacement_is_not_lost() -> None:
    names = {"f": lambda: 1}
    with Patches() as patches:
        patches.hold(names, "f", lambda f: lambda: f() + 1)
        theirs = names["f"] = lambda: 7
    assert names["f"] is theirs


def test_threads_of_a_program_are_traced_together() -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        results = [x] * 6

        def work(index: int) -> None:
            results[index] = (x * index).sin() + index

        errors = run_together(*(lambda i=i: work(i) for i in range(6)))
        assert errors == []
        return results

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(5):
            found = calque.trace(program, X)(X)
            torch.testing.assert_close(found, [(X * i).sin() + i for i in range(6)])
    finally:
        sys.setswitchinterval(before)


class Changing(nn.Module):
    """A module that reads, makes and deletes members."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.recurrent = nn.GRU(3, 3)
        self.left = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left = nn.ReLU()
        del self.left
        self.left = 1
        return self.recurrent(self.layer(x))[0] * self.layer.weight.sum()


def test_a_recording_beside_a_trace_of_another_thread():
    """That one has replaced more names of modules than a recording follows."""
    module, x = Changing(), torch.randn(2, 3)
    with Patches() as patches:
        hold_modules(patches)
        recording = calque.record(module, x)
    torch.testing.assert_close(recording.graph()(x), module(x))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a trace sets no trace function there")
def test_a_trace_begins_while_another_thread_sets_a_trace_function():
    """Python 3.11 refuses that for as long as the other thread destroys its former function."""
    setting = threading.Event()

    class Hook:
        def __call__(self, frame, event, argument):
            return None

        def __del__(self):
            setting.set()
            time.sleep(0.1)

    def other():
        sys.settrace(Hook())
        sys.settrace(None)

    thread = threading.Thread(target=other)
    thread.start()
    setting.wait()
    graph = calque.trace(lambda x: x * 2, torch.ones(2))
    thread.join()
    assert graph(torch.ones(2)).tolist() == [2, 2]
