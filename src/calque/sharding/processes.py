"""Programs with several processes: connecting them, and reading tensors spread over them."""

from functools import lru_cache
from typing import Any

import jax
import torch

from calque.device.memory.cell import read
from calque.device.memory.wrapping import wrap
from calque.device.runtime.addressable import is_here
from calque.device.runtime.in_flight import settled
from calque.device.runtime.placement import everywhere, placement_of
from calque.launching.joining import join
from calque.sharding.arguments import check_tensor


def initialize() -> None:
    """Connect the processes of a program, so that a mesh has the devices of all of them.

    Like `jax.distributed.initialize`, with the environment that `calque launch` or torchrun sets
    up, or that of a cluster (Slurm, Open MPI, TPU). Call it before anything is computed. It does
    nothing in a process started by `calque launch`, which is already connected.

    From then on, on CPUs, every call of a program that spans several processes waits for its
    results. If a process dies, the others end within half a minute and report its number.

    Raises:
        RuntimeError: JAX has already computed something.
        ValueError: neither the environment nor a cluster describes the processes.
    """
    join()


def gather(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the whole tensor on every device, and so in every process.

    If the tensor is spread over several processes, all of them must call this, in the same order.

    Args:
        tensor: a tensor on the device "jax", of any shape.

    Returns:
        A new tensor of the same shape, without a gradient, replicated on the devices of the given
        tensor.

    Raises:
        TypeError: the argument is not a tensor.
        ValueError: the tensor is not on the device.

    >>> import torch
    >>> from calque import sharding
    >>> everyone = sharding.mesh(dp=-1)
    >>> sharding.gather(sharding.shard(torch.arange(8.0), sharding.P("dp"))).sum().item()
    28.0
    """
    check_tensor("gather", tensor, on_device=True)
    array = read(tensor.detach())
    placement = placement_of(array)
    if placement is None or (is_here(array) and array.is_fully_replicated):
        return tensor.detach().clone()
    return wrap(settled(_replicated(everywhere(placement))(array)))


@lru_cache(maxsize=256)
def _replicated(placement: object) -> Any:
    return jax.jit(lambda array: array, out_shardings=placement)
