"""What a step returns after its own backward: each a tensor of its own, whose backward raises."""

import threading

import pytest
import torch
from torch import nn

import calque
from calque.program.gradients.spent_graph import SpentGraph
from tests.jitting.taking import Taken

CALLS = 6


@pytest.fixture
def taken(monkeypatch):
    return Taken(monkeypatch)


def stepping(**settings):
    torch.manual_seed(0)
    layer = nn.Linear(3, 2).to("jax")

    def step(x):
        y = layer(x)
        loss = y.square().mean()
        loss.backward()
        layer.zero_grad()
        return loss, y

    return calque.jit(step, **settings), torch.ones(2, 3, device="jax")


def test_losses_of_calls_have_nothing_in_common_but_their_node(taken):
    step, x = stepping()
    found = [step(x) for _ in range(CALLS)]
    assert taken.alone > 0
    for loss, y in found:
        assert loss.requires_grad and y.requires_grad and not loss.is_leaf
        assert repr(loss).endswith("grad_fn=<FreedBackward>)")
        assert (loss._version, y._version) == (0, 0)
        assert (loss.shape, y.shape, loss.dtype) == ((), (2, 2), torch.float32)
    storages = {one.untyped_storage()._cdata for pair in found for one in pair}
    assert len(storages) == 2 * CALLS
    before = [loss.item() for loss, _ in found]
    with torch.no_grad():
        found[-1][0].add_(1)
    assert [loss._version for loss, _ in found] == [0] * (CALLS - 1) + [1]
    assert [loss.item() for loss, _ in found[:-1]] == before[:-1]


def test_their_backward_raises_and_spoils_no_other_call():
    step, x = stepping()
    for _ in range(CALLS):
        loss, y = step(x)
        for one in (loss, loss * 2, y.sum(), loss + y.mean()):
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                one.backward()
    assert step(x)[0].requires_grad


def test_their_graph_is_spent_in_the_modes_of_the_first_call():
    step, x = stepping()
    with torch.autograd.graph.disable_saved_tensors_hooks("not now"):
        for _ in range(CALLS):
            loss, _ = step(x)
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (t, 1), lambda pair: pair[0]):
        step, x = stepping()
        losses = [step(x)[0] for _ in range(CALLS)]
    assert len({loss.item() for loss in losses}) == 1


def test_a_call_in_the_middle_of_another_gets_its_own():
    spent = SpentGraph("spent", (2,), torch.float32)
    assert spent.make()
    outer, inner = torch.ones(2, device="jax"), torch.zeros(2, device="jax")
    spent.push(outer)
    spent.push(inner)
    first = spent.take(spent.node)
    spent.pop()
    second = spent.take(spent.node)
    spent.pop()
    assert (first.tolist(), second.tolist()) == ([0, 0], [1, 1])


def test_threads_get_their_own():
    spent = SpentGraph("spent", (2,), torch.float32)
    differing = []

    def work(number):
        for _ in range(50):
            found = spent(torch.full((2,), float(number), device="jax"))
            if found.tolist() != [number, number] or not found.requires_grad:
                differing.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not differing


def test_in_inference_mode_there_is_a_graph_too():
    spent = SpentGraph("spent", (2,), torch.float32)
    tensor = torch.ones(2, device="jax")
    with torch.inference_mode():
        found = spent(tensor)
    assert found.tolist() == [1, 1]
