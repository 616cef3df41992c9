"""CPU tensors that compiled graphs pass to each other share memory, and changes are seen."""

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from calque.dynamo.graphs import scratch
from calque.program import shared_memory
from calque.program.shared_memory import result_over, tensor_over

CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "in place": lambda t: t.mul_(2),
    "transposed in place": lambda t: t.t_(),
    "through a view": lambda t: t[0].fill_(3),
    "through detach": lambda t: t.detach().add_(1),
    "other memory": lambda t: t.set_(torch.arange(16.0).reshape(4, 4)),
    "other data": lambda t: setattr(t, "data", torch.full((4, 4), 5.0)),
    "a shifted window": lambda t: setattr(t, "data", torch.arange(20.0)[2:18].reshape(4, 4)),
    "the other axis first": lambda t: setattr(t, "data", t.data.t()),
    "negative bit": lambda t: setattr(t, "data", torch._neg_view(t.data)),
    "repeated rows": lambda t: setattr(t, "data", t.data[:1].expand(4, 4)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_a_result_are_seen_by_the_next_graph(change: str) -> None:
    make = torch.compile(lambda x: x @ x + 1, backend="calque")
    use = torch.compile(lambda x: x * 3 + torch.arange(4.0), backend="calque")
    for seed in range(3):
        result = make(torch.arange(16.0).reshape(4, 4) + seed)
        use(result)
        CHANGES[change](result)
        expected = result * 3 + torch.arange(4.0)
        torch.testing.assert_close(use(result), expected)
        torch.testing.assert_close(use(result.detach()), expected)


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_an_argument_are_seen_by_the_next_call(change: str) -> None:
    use = torch.compile(lambda x: x * 3 + torch.arange(4.0), backend="calque")
    x = torch.arange(16.0).reshape(4, 4)
    for _ in range(3):
        use(x)
        CHANGES[change](x)
        torch.testing.assert_close(use(x), x * 3 + torch.arange(4.0))


def test_gradients_between_a_backward_and_an_update() -> None:
    def train(backend: str | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=True)
        loss_of, update = lambda x: model(x).square().mean(), optimizer.step
        if backend is not None:
            loss_of, update = (torch.compile(f, backend=backend) for f in (loss_of, update))
        for step in range(6):
            for _ in range(1 + step % 2):  # gradients are accumulated
                loss_of(torch.randn(3, 4)).backward()
            if step == 2:
                model[0].weight.grad.mul_(0.5)
            if step == 3:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if step == 4:
                model[2].bias.grad = torch.ones(2)
            update()
            optimizer.zero_grad(set_to_none=step % 3 > 0)
        return [*model.state_dict().values()]

    torch.testing.assert_close(train("calque"), train(None), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("few_objects")
def test_results_are_freed() -> None:
    weight = nn.Parameter(torch.randn(16, 16))
    loss_of = torch.compile(lambda x: (x @ weight).tanh().sum(), backend="calque")
    inputs = []
    for _ in range(3):
        x = torch.randn(16, 16)
        loss_of(x).backward()
        inputs.append(weakref.ref(x))
    gradient = weakref.ref(weight.grad)
    weight.grad = None
    del x
    gc.collect()
    assert gradient() is None
    assert [ref() for ref in inputs] == [None] * 3
    gc.collect()
    assert all(result() is not None for result in shared_memory._results.values())


def test_a_result_is_found_by_its_memory() -> None:
    make = torch.compile(lambda x: (x + 1, x > 0), backend="calque")
    result, mask = make(torch.randn(4, 6))
    array = result_over(result)
    assert array is not None and tensor_over(array).data_ptr() == result.data_ptr()
    assert result_over(result.detach()) is array
    assert result_over(mask) is None  # PyTorch may write bytes to it that are no truth values
    others = [result[1:], result.t(), result.view(6, 4), result.view(torch.int32)]
    assert [result_over(other) for other in others] == [None] * 4


@pytest.mark.parametrize("offset", [0, 3])
def test_any_byte_but_zero_is_true(offset: int) -> None:
    mask = torch.arange(67, dtype=torch.uint8)[offset : offset + 64].view(torch.bool)
    use = torch.compile(lambda m: (m.sum(), m.float(), ~m), backend="calque")
    for moved in (mask, mask.view(8, 8).t(), mask[::2]):
        expected = (moved.sum(), moved.float(), ~moved)
        torch.testing.assert_close(use(moved), expected, check_stride=False)
        there = torch.empty(moved.shape, dtype=torch.bool, device="jax")
        for one in (moved.to("jax"), there.copy_(moved)):
            for got, value in zip((one.sum(), one.float(), ~one), expected, strict=True):
                torch.testing.assert_close(got.cpu(), value, check_stride=False)


def test_arguments_can_be_swapped() -> None:
    use = torch.compile(lambda x: x * 2, backend="calque")
    a, b = torch.ones(4, 4), torch.zeros(4, 4)
    use(a)
    use(b)
    torch.utils.swap_tensors(a, b)
    assert use(a).sum() == 0 and use(b).sum() == 32


class TestScratch:
    """Memory for large values that a graph writes to CPU tensors, which is kept between calls."""

    @pytest.fixture(autouse=True)
    def taken(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Returns the addresses that each call gets, one array for each of them here."""
        found: list[int] = []
        take = scratch.Scratch.take

        def seen(self: scratch.Scratch) -> list[Any]:
            arrays = take(self)
            found.extend(array.unsafe_buffer_pointer() for array in arrays)
            return arrays

        monkeypatch.setattr(scratch.Scratch, "take", seen)
        return found

    def test_every_call_writes_to_the_same_memory(self, taken: list[int]) -> None:
        update = torch.compile(lambda x, g: x.sub_(g * 0.5), backend="calque")
        x, g = torch.zeros(256, 256), torch.ones(256, 256)
        before = x.data_ptr()
        for step in range(1, 5):
            update(x, g)
            assert torch.equal(x, torch.full_like(x, -0.5 * step))
        assert len(taken) == 4 and len(set(taken)) == 1 and taken[0] != x.data_ptr() == before

    def test_small_values_and_results_need_none(self, taken: list[int]) -> None:
        torch.compile(lambda x: x.add_(1), backend="calque")(torch.zeros(16, 16))
        torch.compile(lambda x: x + 1, backend="calque")(torch.zeros(256, 256))
        assert not taken

    def test_results_of_equal_shape_keep_their_values(self) -> None:
        update = torch.compile(lambda x, y: (x.add_(y), y * 2, x - y), backend="calque")
        x, y = torch.zeros(256, 256), torch.ones(256, 256)
        results = [update(x, y)[1:] for _ in range(4)]
        for step, (double, without) in enumerate(results):
            assert torch.equal(double, y * 2) and torch.equal(without, y * step)

    def test_threads_have_memory_of_their_own(self) -> None:
        update = torch.compile(lambda x: x.add_(1), backend="calque")
        tensors = [torch.zeros(256, 256) for _ in range(4)]
        update(torch.zeros(256, 256))

        def work(x: torch.Tensor) -> None:
            for _ in range(50):
                update(x)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, tensors))
        assert all(torch.equal(x, torch.full_like(x, 50.0)) for x in tensors)

    def test_bounded(self, monkeypatch: pytest.MonkeyPatch, taken: list[int]) -> None:
        monkeypatch.setattr(scratch, "_MOST", 2**18 + 1)

        def update(*tensors: torch.Tensor) -> None:
            for tensor in tensors:
                tensor.add_(1)

        tensors = [torch.zeros(256, 256) for _ in range(3)]
        compiled = torch.compile(update, backend="calque")
        compiled(*tensors)
        compiled(*tensors)
        assert len(taken) == 2
        assert all(torch.equal(x, torch.full_like(x, 2.0)) for x in tensors)
