"""Copies, pickles, checkpoints: values, dtypes, sharing and devices survive."""

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import calque  # noqa: F401
from calque.device.runtime.dtypes import TO_NUMPY
from tests import new_process


def saved(value: Any, **options: Any) -> Any:
    """A value after torch.save and torch.load."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.detach().cpu(), b.detach().cpu())


@pytest.mark.parametrize("through", [copy.deepcopy, pickled, saved])
def test_tensors_survive(through: Any) -> None:
    for tensor in (
        torch.arange(6.0, device="jax").reshape(2, 3),
        torch.arange(6, device="jax").reshape(2, 3).t(),
        torch.ones(3, dtype=torch.bfloat16, device="jax")[1:],
        torch.tensor(True, device="jax"),
        torch.empty(0, 3, device="jax"),
        torch.tensor([1 + 2j], device="jax").conj(),
    ):
        result = through(tensor)
        assert result.device.type == "jax"
        assert result.stride() == tensor.stride()
        assert same(result.resolve_conj(), tensor.resolve_conj())


@pytest.mark.parametrize("through", [copy.deepcopy, pickled, saved])
def test_tensors_survive_where_our_device_is_the_default(through: Any) -> None:
    with torch.device("jax"):
        for tensor in (torch.arange(6.0).reshape(2, 3).t(), torch.ones(2, device="cpu")):
            result = through(tensor)
            assert result.device == tensor.device
            assert result.stride() == tensor.stride()
            assert same(result, tensor)
        assert saved(torch.ones(2, device="cpu"), map_location="jax").device.type == "jax"
        assert saved(torch.ones(2), map_location="cpu").device.type == "cpu"
        on_host = torch.ones(2, 3).t().to("cpu", memory_format=torch.contiguous_format)
        assert on_host.device.type == "cpu"


@pytest.mark.parametrize("dtype", TO_NUMPY, ids=str)
def test_every_dtype_survives_a_checkpoint(dtype: torch.dtype) -> None:
    cpu = torch.tensor([0, 1, 2, 1]).to(dtype)
    for result in (
        saved(cpu.to("jax")),
        saved(cpu.to("jax"), map_location="cpu"),
        saved(cpu, map_location="jax"),
        copy.deepcopy(cpu.to("jax")),
    ):
        assert result.dtype == dtype
        assert torch.equal(result.cpu().view(torch.uint8), cpu.view(torch.uint8))


@pytest.mark.parametrize("through", [copy.deepcopy, saved])
def test_tensors_of_one_storage_still_share_it(through: Any) -> None:
    base = torch.arange(6.0, device="jax").reshape(2, 3)
    again, row, turned = through([base, base[0], base.t()])
    again.mul_(10)
    assert row.tolist() == [0, 10, 20]
    assert turned[0].tolist() == [0, 30]
    assert base.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("through", [copy.deepcopy, pickled, saved])
def test_parameters_survive(through: Any) -> None:
    parameter = nn.Parameter(torch.ones(2, device="jax"), requires_grad=True)
    options = {} if through is not saved else {"weights_only": True}
    result = through(parameter, **options)
    assert isinstance(result, nn.Parameter)
    assert result.requires_grad
    assert same(result, parameter)


def test_a_copy_shares_and_a_deep_copy_does_not() -> None:
    tensor = torch.zeros(2, device="jax")
    shallow, deep = copy.copy(tensor), copy.deepcopy(tensor)
    tensor.add_(1)
    assert shallow.tolist() == [1, 1]
    assert deep.tolist() == [0, 0]


def test_a_deep_copied_module_is_independent_and_keeps_its_ties() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)).to("jax")
    model[2].weight = model[0].weight
    twin = copy.deepcopy(model)
    assert twin[2].weight is twin[0].weight
    with torch.no_grad():
        model[0].weight.zero_()
    assert twin[0].weight.abs().sum().item() > 0
    torch.testing.assert_close(twin[1].running_var.cpu(), torch.ones(2))


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2).to("jax")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(4, 3, device="jax")).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("location", [None, "cpu", "jax"])
def test_a_checkpoint_of_model_and_optimizer_goes_on_elsewhere(location: str | None) -> None:
    model, optimizer = trained()
    state = saved(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, map_location=location
    )
    other = nn.Linear(3, 2).to(location or "jax")
    other.load_state_dict(state["model"])
    twin = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    twin.load_state_dict(state["optimizer"])
    for m, o in ((model, optimizer), (other, twin)):
        o.zero_grad()
        m(torch.ones(4, 3, device=m.weight.device)).sum().backward()
        o.step()
    torch.testing.assert_close(other.weight.detach().cpu(), model.weight.detach().cpu())


def test_a_deep_copied_optimizer_keeps_its_state() -> None:
    _, optimizer = trained()
    twin = copy.deepcopy(optimizer)
    for a, b in zip(optimizer.state.values(), twin.state.values(), strict=True):
        assert same(a["momentum_buffer"], b["momentum_buffer"])


@pytest.mark.parametrize("mmap", [False, True])
def test_a_file_loads_with_and_without_mmap(tmp_path: Path, mmap: bool) -> None:
    model = nn.Linear(3, 2).to("jax")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for location in (None, "cpu", "jax"):
        state = torch.load(tmp_path / "model.pt", map_location=location, mmap=mmap)
        assert state["weight"].device.type == (location or "jax")
        assert same(state["weight"], model.weight)


def test_the_old_file_format_works() -> None:
    buffer = io.BytesIO()
    tensor = torch.arange(4.0, device="jax")
    torch.save([tensor, tensor[1:]], buffer, _use_new_zipfile_serialization=False)
    buffer.seek(0)
    whole, part = torch.load(buffer)
    whole.add_(1)
    assert part.tolist() == [2, 3, 4]


def test_loaded_parameters_are_stored_in_their_own_dtype() -> None:
    loaded = saved(torch.ones(2, 3), map_location="jax")
    cell = loaded.untyped_storage().cell
    assert (cell.array.shape, cell.array.dtype.name) == ((2, 3), "float32")


def test_assigning_a_state_dict_moves_a_module() -> None:
    source = nn.Linear(3, 2).to("jax")
    target = nn.Linear(3, 2, device="meta")
    target.load_state_dict(source.state_dict(), assign=True)
    assert same(target.weight, source.weight)
    target(torch.ones(1, 3, device="jax")).sum().backward()


def test_safetensors_round_trip(tmp_path: Path) -> None:
    model = nn.Linear(3, 2).to("jax")
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(model.state_dict(), path)
    loaded = safetensors.torch.load_file(path)
    other = nn.Linear(3, 2).to("jax")
    other.load_state_dict(loaded)
    assert same(other.weight, model.weight)
    other.load_state_dict(safetensors.torch.load_file(path), assign=True)
    other.to("jax")
    assert same(other.bias, model.bias)


def test_safetensors_refuses_tied_weights_as_on_the_cpu(tmp_path: Path) -> None:
    weight = torch.ones(2, device="jax")
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors.torch.save_file({"a": weight, "b": weight}, tmp_path / "tied.safetensors")


def test_torchscript_is_saved_with_its_weights() -> None:
    model = nn.Linear(3, 2).to("jax")
    x = torch.ones(1, 3)
    traced = torch.jit.trace(model, (x.to("jax"),))
    buffer = io.BytesIO()
    torch.jit.save(traced, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer, map_location="cpu")
    torch.testing.assert_close(loaded(x), model(x.to("jax")).cpu())


def test_a_checkpoint_loads_where_calque_is_not_imported(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(3.0, device="jax")}, tmp_path / "w.pt")
    program = (
        "import sys, torch; "
        f"w = torch.load({str(tmp_path / 'w.pt')!r}, map_location='cpu')['w']; "
        "assert 'calque' not in sys.modules; print(w.tolist())"
    )
    done = new_process.run(program)
    assert done.stdout.strip() == "[0.0, 1.0, 2.0]", done.stderr[-2000:]
