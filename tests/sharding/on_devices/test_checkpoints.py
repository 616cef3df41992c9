"""`torch.distributed.checkpoint` of tensors spread over a mesh."""

from pathlib import Path
from typing import Any

import jax
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

import calque
from calque import sharding as sh
from calque.sharding import P, along, checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 3))


def placed(seed: int, plan: dict[str, object], **axes: int) -> nn.Module:
    sh.mesh(**axes)
    return sh.shard_module(model(seed).to("jax"), plan)


def values(made: nn.Module) -> list[torch.Tensor]:
    return [value.cpu() for value in made.state_dict().values()]


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for a, b in zip(values(one), values(other), strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_goes_from_mesh_to_mesh_and_to_the_cpu_and_back(tmp_path: Path) -> None:
    first = placed(1, {"*": sh.along("dp")}, dp=8)
    dcp.save(first.state_dict(), checkpoint_id=tmp_path / "a")
    second = placed(2, {"*.weight": sh.along("tp"), "*": P()}, dp=4, tp=2)
    before = [sh.placement(p) for p in second.parameters()]
    found = second.state_dict()
    dcp.load(found, checkpoint_id=tmp_path / "a")
    assert_same(first, second)
    assert [sh.placement(p) for p in second.parameters()] == before
    plain = model(3)
    found = plain.state_dict()
    dcp.load(found, checkpoint_id=tmp_path / "a")
    assert_same(first, plain)
    dcp.save(plain.state_dict(), checkpoint_id=tmp_path / "b")
    third = placed(4, {"*": sh.along("dp")}, dp=8)
    dcp.load(third.state_dict(), checkpoint_id=tmp_path / "b")
    assert_same(first, third)


def test_no_copy_on_the_host_is_larger_than_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    copy = checkpoints.host_tensor

    def watched(array: object) -> torch.Tensor:
        made = copy(array)
        sizes.append(made.numel())
        return made

    monkeypatch.setattr(checkpoints, "host_tensor", watched)
    sh.mesh(dp=8)
    x = sh.shard(torch.arange(64.0).reshape(16, 4), P("dp"))
    dcp.save({"x": x}, checkpoint_id=tmp_path)
    y = sh.shard(torch.zeros(16, 4), P(None, None))
    z = sh.shard(torch.zeros(16, 4), P("dp"))
    dcp.load({"x": z}, checkpoint_id=tmp_path)
    assert max(sizes) == 8
    assert len(sizes) == 16
    dcp.load({"x": y}, checkpoint_id=tmp_path)
    assert y.tolist() == z.tolist() == x.tolist()


@pytest.mark.parametrize("mesh", [{"dp": 8}, {"dp": 4, "tp": 2}])
def test_files_of_safetensors_have_whole_tensors(tmp_path: Path, mesh: dict[str, int]) -> None:
    plan = {"0.weight": P(*reversed(mesh)), "2.weight": P(None, "dp"), "*": along("dp")}
    load_file = pytest.importorskip("safetensors.torch").load_file
    first = placed(1, plan, **mesh)
    files = {name: 1 + index % 3 for index, name in enumerate(first.state_dict())}
    parts = {"save_distributed": True, "enable_consolidation": True}
    for folder, settings in {tmp_path / "one": {}, tmp_path / "parts": parts}.items():
        writer = HuggingFaceStorageWriter(str(folder), files, **settings)
        dcp.save(first.state_dict(), storage_writer=writer)
        plain = {n: t for file in folder.glob("*.safetensors") for n, t in load_file(file).items()}
        assert all(torch.equal(plain[n], t.cpu()) for n, t in first.state_dict().items())
        second = placed(2, plan, **mesh)
        reader = HuggingFaceStorageReader(str(folder), thread_count=3)
        dcp.load(second.state_dict(), storage_reader=reader)
        assert_same(first, second)


def test_tensors_without_a_placement_have_none_of_it() -> None:
    for tensor in (torch.ones(3), torch.ones(3, device="jax")):
        assert not hasattr(tensor, "__create_write_items__")


def test_safetensors_write_whole_tensors_and_load_where_they_lie(tmp_path: Path) -> None:
    files = pytest.importorskip("safetensors.torch")
    sh.mesh(dp=8)
    model = sh.shard_module(nn.Linear(16, 64).to("jax"), {"*": along("dp")})
    files.save_file(model.state_dict(), tmp_path / "file")
    found = files.load_file(tmp_path / "file")
    assert torch.equal(found["weight"], model.weight.detach().cpu())
    before = sh.placement(model.weight)
    model.load_state_dict({name: value + 1 for name, value in found.items()})
    assert torch.equal(model.weight.detach().cpu(), found["weight"] + 1)
    assert sh.placement(model.weight) == before


@pytest.mark.conformance  # orbax takes long to import
@pytest.mark.filterwarnings("ignore")
def test_orbax_writes_parts_and_reads_them_for_another_mesh(tmp_path: Path) -> None:
    orbax: Any = pytest.importorskip("orbax.checkpoint")
    sh.mesh(dp=8)
    model = sh.shard_module(nn.Linear(16, 64).to("jax"), {"*": along("dp")})
    arrays = {name: calque.to_jax(value) for name, value in model.state_dict().items()}
    assert all(not array.is_fully_replicated for array in arrays.values())
    with orbax.StandardCheckpointer() as files:
        files.save(tmp_path / "made", arrays)
        files.wait_until_finished()
        sh.mesh(dp=4, tp=2)
        plan = {"weight": P("tp", "dp"), "bias": P("tp")}
        other = sh.shard_module(nn.Linear(16, 64).to("jax"), plan)
        wanted = {name: calque.to_jax(value) for name, value in other.state_dict().items()}
        abstract = jax.tree.map(orbax.utils.to_shape_dtype_struct, wanted)
        found = files.restore(tmp_path / "made", abstract)
    other.load_state_dict({name: calque.to_torch(array) for name, array in found.items()})
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours.cpu(), theirs.cpu())
    assert sh.placement(other.weight).spec == P("tp", "dp")
