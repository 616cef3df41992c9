"""`torch.compile` of CPU tensors where the device has memory of its own, as a GPU."""

import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from calque.device.runtime import placement
from calque.program import shared_memory


@pytest.fixture(autouse=True)
def memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, module in list(sys.modules.items()):
        if name.startswith("calque.") and hasattr(module, "host_has_default_device"):
            monkeypatch.setattr(module, "host_has_default_device", lambda: False)
    shared_memory._direct.cache_clear()
    torch._dynamo.reset()
    yield
    monkeypatch.undo()
    shared_memory._direct.cache_clear()
    torch._dynamo.reset()


def test_nothing_is_shared() -> None:
    assert not placement.host_has_default_device()
    x = torch.ones(64)
    array = shared_memory.array_over(x)
    x.zero_()
    assert array.sum() == 64
    made = shared_memory.tensor_over(array)
    assert made.device.type == "cpu"
    assert made.data_ptr() != array.unsafe_buffer_pointer()
    assert shared_memory.result_over(made) is None


def test_training_writes_to_the_tensors_of_the_cpu() -> None:
    def train(backend: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(200, 200), nn.BatchNorm1d(200), nn.ReLU())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def loss_of(x: torch.Tensor) -> torch.Tensor:
            return model(x).square().mean()

        step, update = torch.compile(loss_of, backend=backend), optimizer.step
        update = torch.compile(update, backend=backend)
        for _ in range(4):
            step(torch.randn(8, 200)).backward()
            update()
            optimizer.zero_grad()
        return [*model.parameters(), *model.buffers()]

    for ours, theirs in zip(train("calque"), train("eager"), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_sizes_in_buckets() -> None:
    compiled = torch.compile(
        lambda x: (x * 2).cumsum(0), backend="calque", dynamic=True, options={"buckets": "pow2"}
    )
    for count in (3, 5, 6, 9):
        x = torch.arange(count * 2.0).view(count, 2)
        assert torch.equal(compiled(x), (x * 2).cumsum(0))
