"""Handlers of signals, and other threads, that compute while a function is traced: what they do is
no part of it.
"""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import calque
from calque.program.lifting import Lifting

_PID = os.getpid()  # a traced program must not read it


class _Signals:
    """Sends a signal to this process while a trace makes its tensors."""

    def __init__(self) -> None:
        self.handle: Callable[[], object] = lambda: None
        self.due = 0

    def __call__(self, *_: Any) -> None:
        self.handle()


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Signals]:
    sent, created = _Signals(), Lifting.created

    def create(self: Lifting, *args: Any) -> None:
        created(self, *args)
        if sent.due:
            sent.due -= 1
            os.kill(_PID, signal.SIGUSR1)

    monkeypatch.setattr(Lifting, "created", create)
    before = signal.signal(signal.SIGUSR1, sent)
    yield sent
    signal.signal(signal.SIGUSR1, before)


def test_what_a_handler_computes_is_no_part_of_the_program(signals: _Signals) -> None:
    total, kept = torch.zeros(2, device="jax"), [torch.zeros(2, device="jax")]

    @calque.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + total + len(kept)

    def handle() -> None:
        kept.append(total.add_(torch.ones(2, device="jax")) * 1)

    signals.handle, signals.due = handle, 1
    x = torch.ones(2, device="jax")
    assert step(x).tolist() in ([4, 4], [5, 5])
    assert [step(x).tolist() for _ in range(3)] == [[5, 5]] * 3
    assert total.tolist() == kept[1].tolist() == [1, 1]
    assert len(kept) == 2


def test_a_handler_calls_a_jitted_function(signals: _Signals) -> None:
    total = torch.zeros(2, device="jax")
    inner = calque.jit(lambda: total.add_(1))
    inner()
    signals.handle, signals.due = inner, 1
    step: Any = calque.jit(lambda x: x * 2 + total)
    x = torch.ones(2, device="jax")
    assert [step(x).tolist() for _ in range(2)] == [[4, 4]] * 2
    # From Python 3.12 on, the code in this file that sends the signal is traced as well.
    assert [why for why in step.history if "sent.due" not in why] == ["first call"]


def test_a_handler_that_uses_a_tensor_of_the_trace_is_told_so(signals: _Signals) -> None:
    last: list[Any] = [None]
    said: list[str] = []

    @calque.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        last[0] = x * 2
        return last[0] * 3

    def handle() -> None:
        for use in (torch.Tensor.tolist, lambda x: x + 1):
            if last[0] is not None:
                with pytest.raises(calque.TraceError) as error:
                    use(last[0])
                said.append(str(error.value))

    signals.handle, signals.due = handle, 2
    x = torch.ones(2, device="jax")
    assert [step(x).tolist() for _ in range(3)] == [[6, 6]] * 3
    assert len(said) == 2 and all("is still traced while other code" in one for one in said)


def test_an_operator_of_another_thread_on_a_tensor_of_the_trace_is_refused() -> None:
    """Also if its kind of call has been served without an executable of its own before."""
    layer = torch.nn.Linear(3, 2).to("jax")
    for _ in range(6):
        layer(torch.ones(1, 3, device="jax"))

    @calque.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(layer, y).result()

    with pytest.raises(calque.TraceError, match="is still traced while other code"):
        step(torch.ones(1, 3, device="jax"))
