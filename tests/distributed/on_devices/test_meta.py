"""Models on "meta" are spread before they have memory."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from calque import sharding as sh
from calque.sharding import P


def on_meta() -> nn.Sequential:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 8))


def spread() -> nn.Sequential:
    mesh = init_device_mesh("jax", (4, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(
        on_meta(), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    return fully_shard(model, mesh=mesh["dp"])


def check(model: nn.Sequential) -> None:
    assert sh.placement(model[0].weight).spec == P("tp", "dp")
    assert sh.placement(model[2].weight).spec == P("dp", "tp")
    assert sh.placement(model[1].weight).spec == P("dp")
    model(torch.ones(8, 16, device="jax")).sum().backward()
    assert sh.placement(model[0].weight.grad).spec == P("tp", "dp")


def test_memory_comes_with_the_placement_that_was_promised() -> None:
    model = spread()
    parameters = list(model.parameters())
    model.to_empty(device="jax")
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    for part in model:
        part.reset_parameters()
    check(model)


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_tensors_that_are_assigned_get_what_was_promised(device: str) -> None:
    values = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 8)).to(device)
    model = spread()
    model.load_state_dict(values.state_dict(), assign=True)
    model.to("jax")
    assert model[0].weight.cpu().equal(values[0].weight.cpu())
    check(model)


def test_materialize_gives_what_was_promised() -> None:
    check(sh.materialize(spread(), {}))


def test_a_plan_goes_before_a_promise() -> None:
    model = sh.materialize(spread(), {"0.weight": P()})
    assert sh.placement(model[0].weight).spec == P()


@pytest.mark.parametrize("wrap", [nn.Parameter, lambda tensor: tensor])
def test_a_tensor_is_distributed(wrap) -> None:
    mesh = init_device_mesh("jax", (8,))
    holder = nn.Module()
    tensor = distribute_tensor(wrap(torch.empty(16, 4, device="meta")), mesh, [Shard(0)])
    if isinstance(tensor, nn.Parameter):
        holder.weight = tensor
    else:
        holder.register_buffer("weight", tensor)
    holder.to_empty(device="jax")
    assert sh.placement(holder.weight).local_shape == (2, 4)
