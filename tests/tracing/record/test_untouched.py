"""A recorded program does what it would do by itself, and nothing of the recording stays."""

import copy
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import calque
from calque.tracing.core import patching


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor, fails: bool = False) -> Tensor:
        y = self.layers(x)
        if fails:
            raise ValueError("on purpose")
        return self.head(y)


def surroundings() -> list[Any]:
    """What a recording could leave behind, in this thread and in the names that it replaces."""
    names = [
        *(vars(nn.Module)[name] for name in ("__call__", "__getattr__", "__setattr__", "__init__")),
        *(threading.Thread.start, torch.manual_seed, torch.Generator, torch.is_grad_enabled),
        *(torch.overrides.has_torch_function, vars(torch.autograd.Function).get("apply")),
        *(torch.amp.autocast.__enter__, torch.nn.Parameter.__new__),
    ]
    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    flags = [
        *(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            gc.isenabled(),
            gc.get_freeze_count(),
        ),
        *(torch.get_default_dtype(), torch.is_autocast_enabled("cpu"), len(patching._installed)),
    ]
    return [*map(id, names), *map(id, modes), *flags]


def test_outputs_random_numbers_gradients_and_buffers_are_those_of_a_plain_run() -> None:
    model = Net()
    twin = copy.deepcopy(model)
    x = torch.randn(5, 4)
    torch.manual_seed(3)
    expected = twin(x)
    after = torch.rand(3)
    torch.manual_seed(3)
    recording = calque.record(model, x)
    assert torch.equal(torch.rand(3), after)
    assert torch.equal(recording.result, expected)
    recording.result.sum().backward()
    expected.sum().backward()
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert p.grad is not None, name
        assert torch.equal(p.grad, q.grad), name  # pyright: ignore[reportArgumentType]
    for p, q in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(p, q)


def test_attributes_of_modules_are_those_of_before() -> None:
    model = Net()
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    calque.record(model, torch.randn(5, 4))
    for name, module in model.named_modules():
        assert vars(module) == before[name]
        assert list(vars(module)) == list(before[name])


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_stays(fails: bool) -> None:
    model, before = Net(), surroundings()
    try:
        calque.record(model, torch.randn(5, 4), fails=fails)
    except ValueError:
        assert fails
    assert surroundings() == before


def test_an_exception_has_what_was_recorded_until_then() -> None:
    with pytest.raises(ValueError, match="on purpose") as raised:
        calque.record(Net(), torch.randn(5, 4), fails=True)
    recording = raised.value.recording  # type: ignore[attr-defined]
    assert [call.name for call in recording.calls][-1] == "dropout"
    assert "Linear layers.0" in str(recording)


def test_an_interrupt_has_what_was_recorded_until_then() -> None:
    def interrupted(x: Tensor) -> None:
        x.sin()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        calque.record(interrupted, torch.ones(2))
    recording: Any = raised.value.recording  # type: ignore[attr-defined]
    assert [call.name for call in recording.calls] == ["sin"]
    assert recording.problems == ["the program has raised KeyboardInterrupt, and did not end"]


def test_modes_that_the_program_leaves_open_stay_open() -> None:
    class Mine(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    mine = Mine()

    def program(x: Tensor) -> Tensor:
        mine.__enter__()
        return x * 2

    recording = calque.record(program, torch.ones(2))
    try:
        assert _get_current_function_mode_stack() == [mine]
        assert recording.result.tolist() == [2, 2]
    finally:
        mine.__exit__(None, None, None)


def test_other_threads_are_not_recorded() -> None:
    started, stop = threading.Event(), threading.Event()
    counts: list[int] = []

    def work() -> None:
        model, x = Net().eval(), torch.ones(2, 4)
        expected = model(x)
        started.set()
        count = 0
        while not stop.is_set():
            assert torch.equal(model(x), expected)
            count += 1
        counts.append(count)

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(60)
    recordings = [calque.record(Net().eval(), torch.ones(5, 4)) for _ in range(20)]
    stop.set()
    thread.join()
    assert counts[0] > 0
    assert {len(recording.calls) for recording in recordings} == {5}


def test_threads_record_their_own_programs_at_one_time() -> None:
    found: dict[int, list[str]] = {}

    def work(index: int) -> None:
        def program(x: Tensor) -> Tensor:
            for _ in range(50):
                x = x.sin() if index else x.cos()
            return x

        found[index] = [call.name for call in calque.record(program, torch.ones(2)).calls]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: ["cos"] * 50, 1: ["sin"] * 50}


def test_activations_are_not_kept_but_when_asked_for() -> None:
    alive: list[Any] = []

    def program(x: Tensor) -> Tensor:
        for _ in range(10):
            x = x + 1
            alive.append(weakref.ref(x))
        assert sum(r() is not None for r in alive) <= 1
        return x

    with torch.no_grad():
        calque.record(program, torch.ones(1000))
    model = Net().eval()
    x = torch.randn(5, 4)
    recording = calque.record(model, x, keep=["layers.?", "head"])
    assert list(recording.kept) == ["layers.0", "layers.1", "layers.2", "layers.3", "head"]
    assert torch.equal(recording.kept["layers.0"][0], model.layers[0](x))


def test_what_went_wrong_before_the_program_runs_leaves_nothing() -> None:
    before = surroundings()
    with pytest.raises(TypeError):
        calque.record(Net(), wrong=1)
    with pytest.raises(TypeError, match="not a module or a function"):
        calque.record(3)  # pyright: ignore[reportArgumentType]
    assert surroundings() == before


def test_the_counts_account_for_every_operator() -> None:
    recording = calque.record(Net().eval(), torch.randn(5, 4))
    counts = recording.operator_counts
    assert counts.operators == counts.within_calls > 5
    scripted = torch.jit.script(lambda_as_function)
    assert (
        calque.record(lambda x: scripted(x) + 1, torch.ones(3)).operator_counts.outside_calls == 2
    )


def lambda_as_function(x: Tensor) -> Tensor:
    return (x * 2).sin()


class Sealed(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        if name == "recording":
            raise TypeError("sealed")
        super().__setattr__(name, value)


def test_an_exception_that_refuses_attributes_is_raised_as_it_is() -> None:
    def program(x: Tensor) -> Tensor:
        raise Sealed(x * 2)

    with pytest.raises(Sealed):
        calque.record(program, torch.ones(2))
