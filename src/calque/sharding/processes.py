"""Programs of several processes: joining them, and reading what is spread over them."""

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


def initialize() -> None:
    """Join the processes of a program, so that a mesh spreads over the devices of all.

    As `jax.distributed.initialize`, from the environment that `calque launch` and torchrun make, or
    from the cluster's (Slurm, Open MPI, TPU). To be called before anything is computed; it does
    nothing in a process that `calque launch` has started, which has joined already.

    On CPUs every call of a program that spans several processes waits for its results from then on.
    A process that dies ends the others, with its number, within half a minute.

    Raises:
        RuntimeError: JAX has computed something before.
        ValueError: neither the environment nor a cluster says which processes there are.
    """
    join()


def gather(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor on every device, and so in every process.

    Where several processes share it, all of them have to call this, in the same order.

    Args:
        tensor: a tensor of the device "jax", of any shape.

    Returns:
        A new tensor of the same shape, without a gradient, replicated where the first is spread.

    >>> import torch
    >>> from calque import sharding
    >>> everyone = sharding.mesh(dp=-1)
    >>> sharding.gather(sharding.shard(torch.arange(8.0), sharding.P("dp"))).sum().item()
    28.0
    """
    array = read(tensor.detach())
    placement = placement_of(array)
    if placement is None or (is_here(array) and array.is_fully_replicated):
        return tensor.detach().clone()
    return wrap(settled(_replicated(everywhere(placement))(array)))


@lru_cache(maxsize=256)
def _replicated(placement: Any) -> Any:
    return jax.jit(lambda array: array, out_shardings=placement)
