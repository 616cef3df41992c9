"""Programs of eager calls share MLIR contexts; compiled functions have their own."""

import threading

import pytest
import torch

import calque
from calque.device.runtime import shared_contexts
from calque.upstream.jax_internals import mlir


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Returns the contexts made during a test."""
    made: list[object] = []
    make = shared_contexts._make

    def counted() -> object:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(mlir, "make_ir_context", shared_contexts._context)
    monkeypatch.setattr(shared_contexts, "_make", counted)
    monkeypatch.setattr(shared_contexts, "sharing", shared_contexts._Sharing())
    monkeypatch.setattr("calque.device.runtime.staged_calls.sharing", shared_contexts.sharing)
    monkeypatch.setattr("calque.device.kernels.allocations.sharing", shared_contexts.sharing)
    monkeypatch.setattr("calque.device.kernels.argument_slots.sharing", shared_contexts.sharing)
    return made


def _new_shapes(first: int) -> None:
    for size in range(first, first + 4):
        x = torch.ones(size, 3, device="jax")
        assert x[1:].cos().sum().item() == pytest.approx((size - 1) * 3 * 0.5403, abs=0.1)


def test_eager_calls_share_a_context_in_each_thread(contexts: list[object]) -> None:
    _new_shapes(401)
    assert len(contexts) == 1
    thread = threading.Thread(target=_new_shapes, args=(411,))
    thread.start()
    thread.join()
    assert len(contexts) == 2


def test_a_context_takes_so_many_programs_and_no_more(contexts: list[object]) -> None:
    _new_shapes(421)
    assert 0 < shared_contexts.sharing.left < shared_contexts._PROGRAMS
    shared_contexts.sharing.left = 0
    _new_shapes(431)
    assert len(contexts) == 2


def test_a_jitted_function_has_its_own_and_an_error_ends_the_sharing(
    contexts: list[object],
) -> None:
    x = torch.ones(441, device="jax")
    assert len(contexts) == 1
    with pytest.raises(RuntimeError, match="size"):
        torch.add(x, torch.ones(442, device="jax"))
    calque.jit(torch.sin)(x)
    assert len(contexts) > 1
    assert not shared_contexts.sharing.wanted
