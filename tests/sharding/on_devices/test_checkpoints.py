"""`torch.distributed.checkpoint` of tensors spread over a mesh."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from calque import sharding as sh
from calque.sharding import P, checkpoints

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


def test_tensors_without_a_placement_have_none_of_it() -> None:
    for tensor in (torch.ones(3), torch.ones(3, device="jax")):
        assert not hasattr(tensor, "__create_write_items__")
