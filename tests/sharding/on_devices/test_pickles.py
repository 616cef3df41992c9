"""Meshes, placements, specs and what keeps them, pickled and copied."""

import copy
import io
import pickle
from functools import partial
from typing import Any

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from calque import sharding as sh
from calque.sharding import P, along, pickling


class Pinned(nn.Module):
    """Keeps what says where its values lie."""

    def __init__(self) -> None:
        super().__init__()
        self.mesh, self.spec, self.plan = sh.mesh(dp=4, tp=2), P("dp"), {"*": along("dp", "tp")}
        self.linear = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sh.constrain(self.linear(x), self.spec, mesh=self.mesh)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("again", [pickled, copy.deepcopy])
def test_what_says_where_tensors_lie_is_the_same_again(again: Any) -> None:
    mesh = sh.mesh(dp=4, tp=2)
    found = sh.placement(sh.shard(torch.zeros(8, 8), P("dp", "tp")))
    assert again(mesh) is mesh
    for one in (found, found.sharding, P(("dp", "tp"), None), along("dp"), jax.devices()[5]):
        assert again(one) == one


@pytest.mark.parametrize("again", [pickled, copy.deepcopy, saved])
def test_a_module_that_keeps_a_mesh_computes_the_same_again(again: Any) -> None:
    module = Pinned().to("jax")
    sh.shard_module(module, module.plan)
    other = again(module)
    assert other.mesh is module.mesh
    x = torch.randn(8, 8, device="jax")
    torch.testing.assert_close(other(x), module(x))  # different programs sum in different orders
    assert sh.placement(other.linear.weight) == (
        sh.placement(module.linear.weight) if again is copy.deepcopy else None
    )


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(RuntimeError, match="uses cpu device 99, but JAX has 8 here"):
        pickling.device_of("cpu", 99)


@pytest.mark.parametrize("again", [pickled, copy.deepcopy, saved])
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "own forward"])
def test_a_parallel_module_computes_the_same_again(again: Any, kind: str) -> None:
    mesh = init_device_mesh("jax", (8,))
    module = nn.Linear(8, 16).to("jax")
    if kind == "own forward":
        module.forward = partial(F.linear, weight=module.weight, bias=module.bias)
    module = DistributedDataParallel(module) if kind == "ddp" else fully_shard(module, mesh=mesh)
    other = again(module)
    assert isinstance(other, DistributedDataParallel if kind == "ddp" else FSDPModule)
    x = torch.randn(8, 8, device="jax")
    found = other(x)
    torch.testing.assert_close(found, module(x))
    assert sh.placement(found.clone()).local_shape[0] == 1


@pytest.mark.parametrize("again", [pickled, copy.deepcopy, saved])
def test_a_module_with_parallel_styles_computes_the_same_again(again: Any) -> None:
    mesh = init_device_mesh("jax", (4, 2), mesh_dim_names=("dp", "tp"))
    module = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8), nn.Identity())
    plan = {
        "0": ColwiseParallel(output_layouts=Shard(0)),
        "1": SequenceParallel(sequence_dim=0),
        "2": RowwiseParallel(),
        "3": PrepareModuleInputOutput(
            input_layouts=(Replicate(),),
            desired_input_layouts=(Shard(0),),
            output_layouts=(Shard(0),),
            desired_output_layouts=(Shard(1),),
        ),
    }
    parallelize_module(module.to("jax"), mesh["tp"], plan)
    distribute_module(module, mesh, None, first_as_it_is, as_it_is)
    other = again(module)
    x = torch.randn(8, 8, device="jax")
    found = other(x)
    torch.testing.assert_close(found, module(x))
    assert sh.placement(found.clone()).local_shape[1] == 4


def first_as_it_is(module: nn.Module, inputs: Any, mesh: Any) -> Any:
    return inputs


def as_it_is(module: nn.Module, outputs: Any, mesh: Any) -> Any:
    return outputs


def test_a_mesh_of_pytorchs_name_is_the_same_again() -> None:
    mesh = init_device_mesh("jax", (4, 2), mesh_dim_names=("dp", "tp"))
    other = pickled({"mesh": mesh, "part": mesh["tp"]})
    assert other["mesh"] == mesh
    x = distribute_tensor(torch.zeros(8, 8), other["part"], [Shard(0)])
    assert sh.placement(x).local_shape == (4, 8)
