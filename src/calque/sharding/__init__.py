"""One program over many devices, with tensors spread over a mesh of JAX devices.

A tensor stays a plain `torch.Tensor` with its global shape. Its storage has a *placement*, which
says which part each device holds. Operators, `calque.jit` and `torch.compile` follow the
placements, and XLA inserts the communication between devices.
"""

from calque.sharding import checkpoints as _checkpoints
from calque.sharding import pickling as _pickling
from calque.sharding.constraining import constrain
from calque.sharding.local import Part, loader, local
from calque.sharding.materializing import materialize
from calque.sharding.memory import Memory, memory
from calque.sharding.mesh import P, Spec, along, mesh
from calque.sharding.placement import Placement, placement, shard
from calque.sharding.plan import Plan, shard_module
from calque.sharding.processes import gather, initialize

_checkpoints.install()
_pickling.install()
del _checkpoints, _pickling

__all__ = [
    "Memory",
    "P",
    "Part",
    "Placement",
    "Plan",
    "Spec",
    "along",
    "constrain",
    "gather",
    "initialize",
    "loader",
    "local",
    "materialize",
    "memory",
    "mesh",
    "placement",
    "shard",
    "shard_module",
]
