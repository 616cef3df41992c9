"""`DistributedDataParallel` over tensors of the device: replicated weights, a batch that is split.

A gradient is that of the loss over the global batch, so that nothing has to be summed by hooks.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from calque.device.memory.cell import active, read
from calque.device.runtime.placement import placement_of
from calque.distributed.layouts import FREE, is_tensor
from calque.distributed.tensors import placement_spec
from calque.sharding import P, constrain, mesh, shard
from calque.sharding.placement import placement


class JaxDistributedDataParallel(DistributedDataParallel):
    """What `DistributedDataParallel` makes of a module of the device "jax"."""

    module: nn.Module

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's result for a global batch, split over all devices in dimension 0."""
        inputs, kwargs = pytree.tree_map(self._split, (inputs, kwargs))
        return self.module(*inputs, **kwargs)

    @torch.compiler.disable
    def _split(self, value: Any) -> Any:
        if not is_tensor(value) or not value.ndim:
            return value
        if active.trace is None and jax.process_count() > 1 and _is_own(value):
            raise RuntimeError(
                "DistributedDataParallel got a batch that each process has its own of. A batch is "
                "global here: take batches from calque.sharding.loader(data_loader, "
                "P('data')), which joins those of the processes, labels too"
            )
        if value.shape[0] % self._mesh.size:
            return value
        entries = [self._axes, *[FREE] * (value.ndim - 1)]
        return constrain(value, P(*entries), mesh=self._mesh)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Nothing to put off: gradients add up in `.grad` as without a wrapper."""
        yield

    def register_comm_hook(self, *_: Any) -> None:
        """Not to be had.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("the gradient of a global loss is not communicated by hooks")


def _is_own(tensor: Any) -> bool:
    return placement_of(read(tensor.detach())) is None


def install() -> None:
    """Serve modules whose parameters are on the device."""
    theirs = DistributedDataParallel.__init__

    @functools.wraps(theirs)
    def init(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if any(p.device.type == "jax" for p in module.parameters()):
            _init(self, module)
        else:
            theirs(self, module, *args, **kwargs)

    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
    older = FullyShardedDataParallel.__init__

    @functools.wraps(older)
    def refused(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if any(p.device.type == "jax" for p in module.parameters()):
            raise NotImplementedError(
                "FullyShardedDataParallel flattens parameters for collectives of its own: of a "
                "module of the device 'jax' use torch.distributed.fsdp.fully_shard"
            )
        older(self, module, *args, **kwargs)

    FullyShardedDataParallel.__init__ = refused  # type: ignore[method-assign]


def _init(self: Any, module: nn.Module) -> None:
    nn.Module.__init__(self)
    self.__class__ = JaxDistributedDataParallel
    self.module = module
    placed = [p for p in map(placement, module.parameters()) if p is not None and p.mesh]
    on: Any = placed[0].mesh if placed else mesh(data=-1)
    self._mesh = on
    names = on.axis_names
    self._axes = names[0] if len(names) == 1 else tuple(names)
    for tensor in [*module.parameters(), *module.buffers()]:
        if is_tensor(tensor) and placement_spec(tensor) is None:
            shard(tensor, P(), self._mesh)
