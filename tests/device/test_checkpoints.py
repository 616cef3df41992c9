"""`torch.distributed.checkpoint` writes and reads tensors of the device as those of the CPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import calque  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture(autouse=True)
def _one_process() -> Iterator[None]:
    assert not torch.distributed.is_initialized()
    yield
    assert not torch.distributed.is_initialized()


def model(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to(device)


def trained(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    made = model(device)
    optimizer = torch.optim.AdamW(made.parameters())
    made(torch.randn(5, 4).to(device)).square().sum().backward()
    optimizer.step()
    return made, optimizer


def state(made: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(made, optimizer)
    return {"model": weights, "optimizer": moments}


def assert_same(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a.cpu(), b.cpu())


@pytest.mark.parametrize(("written", "read"), [("jax", "cpu"), ("cpu", "jax"), ("jax", "jax")])
def test_a_checkpoint_goes_from_device_to_device(written: str, read: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    before = trained(written)
    dcp.save(state(*before), checkpoint_id=tmp_path)
    torch.manual_seed(2)
    after = trained(read)
    found = state(*after)
    dcp.load(found, checkpoint_id=tmp_path)
    set_state_dict(*after, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    assert_same(state(*before), state(*after))
    assert next(after[0].parameters()).device.type == read


def test_loading_writes_into_the_tensors_that_are_there(tmp_path: Path) -> None:
    x = torch.arange(12.0, device="jax").reshape(3, 4)
    dcp.save({"x": x[1:, ::2].to(torch.bfloat16)}, checkpoint_id=tmp_path)
    memory = torch.zeros(3, 4, dtype=torch.bfloat16, device="jax")
    dcp.load({"x": memory[1:, ::2]}, checkpoint_id=tmp_path)
    assert memory.tolist() == [[0, 0, 0, 0], [4, 0, 6, 0], [8, 0, 10, 0]]


def test_what_changes_after_an_asynchronous_save_is_not_in_it(tmp_path: Path) -> None:
    before, saved = model("jax"), model("cpu")
    expected = {name: value.cpu() for name, value in before.state_dict().items()}
    waiting = dcp.async_save(before.state_dict(), checkpoint_id=tmp_path)
    with torch.no_grad():
        for parameter in before.parameters():
            parameter.add_(1)
    waiting.result()
    found = saved.state_dict()
    dcp.load(found, checkpoint_id=tmp_path)
    assert_same(expected, found)


def test_the_only_stream_is_that_of_the_accelerator() -> None:
    stream = torch.jax.current_stream()
    assert stream == torch.accelerator.current_stream() == torch.jax.default_stream()
    with torch.jax.stream(stream):
        x = torch.ones(3, device="jax") * 2
    stream.synchronize()
    assert isinstance(stream, torch.jax.Stream)
    x.record_stream(stream)
    assert x.tolist() == [2, 2, 2]


def test_events_tell_the_time_between_them() -> None:
    before, after = (torch.jax.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(RuntimeError, match="recorded before"):
        before.elapsed_time(after)
    before.record()
    x = torch.ones(300, 300, device="jax")
    for _ in range(20):
        x = x @ x / 300
    after.record(torch.jax.current_stream())
    assert before.elapsed_time(after) > 0 > after.elapsed_time(before)
    untimed = torch.jax.Event()
    torch.jax.current_stream().wait_event(untimed)
    untimed.record()
    untimed.synchronize()
    assert isinstance(untimed, torch.Event) and untimed.query()
    for other in (untimed, torch.Event("jax")):
        with pytest.raises(RuntimeError, match="enable_timing=True"):
            before.elapsed_time(other)
    with pytest.raises(RuntimeError, match="cannot belong to cpu"):
        torch.jax.Stream("cpu")
