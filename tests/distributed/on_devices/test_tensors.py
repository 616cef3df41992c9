"""DTensor's methods on plain tensors that lie on a mesh of type "jax"."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import calque
from calque import sharding


@pytest.mark.parametrize(
    "run", [lambda f: f, calque.jit, torch.compile(backend="calque", fullgraph=True)]
)
def test_tensors_are_redistributed_in_every_mode_with_their_gradients(run: Any) -> None:
    torch.compiler.reset()
    mesh = init_device_mesh("jax", (4, 2), mesh_dim_names=("dp", "tp"))
    ways = {
        "full": lambda x: x.full_tensor(),
        "full, of a result": lambda x: (x * 3).full_tensor(),
        "moved": lambda x: x.redistribute(placements=[Replicate(), Shard(0)]),
        "moved, of a result": lambda x: (x * 3).redistribute(mesh, [Replicate(), Shard(0)]),
    }

    def way(name: str, x: torch.Tensor) -> torch.Tensor:
        return ways[name](x) * 2

    for name in ways:
        host = torch.arange(16.0).reshape(8, 2).requires_grad_()
        x = distribute_tensor(host, mesh, [Shard(0), Replicate()])
        found = run(partial(way, name))(x)
        scale = 6 if "result" in name else 2
        assert found.tolist() == (host * scale).tolist()
        assert sharding.placement(found).local_shape == ((8, 2) if "full" in name else (4, 2))
        found.sum().backward()
        assert x.grad.tolist() == [[scale, scale]] * 8
        assert sharding.placement(x.grad).local_shape == (2, 2)


def test_what_only_placed_tensors_have_is_no_attribute_of_others_in_a_program() -> None:
    init_device_mesh("jax", (8,))
    program = torch.compile(
        lambda x: x + hasattr(x, "full_tensor"), fullgraph=True, backend="eager"
    )
    assert program(torch.zeros(2)).tolist() == [0, 0]
    with pytest.raises(RuntimeError, match="shape .8,., of which XLA chooses"):
        calque.jit(lambda x: (x + 1).to_local())(torch.zeros(8, device="jax"))


def test_dtypes_of_a_redistribution_are_refused() -> None:
    mesh = init_device_mesh("jax", (8,), mesh_dim_names=("dp",))
    x = distribute_tensor(torch.ones(8), mesh, [Shard(0)])
    with pytest.raises(NotImplementedError, match="convert the tensor"):
        x.redistribute(placements=[Replicate()], forward_dtype=torch.bfloat16)
