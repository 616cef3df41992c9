"""`DistributedDataParallel` for tensors on the device: replicated weights and a split batch.

Gradients are those of the loss over the global batch, so hooks need not sum them.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import torch
from jax.sharding import Mesh
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from calque.device.memory.cell import active, read
from calque.device.runtime.placement import placement_of
from calque.distributed.layouts import is_tensor
from calque.distributed.sharding_constraints import Pin, split
from calque.distributed.tensors import placement_spec
from calque.sharding import P, mesh, shard
from calque.sharding.placement import placement
from calque.upstream.torch_internals import tree_map


class JaxDistributedDataParallel(DistributedDataParallel):
    """The class of `DistributedDataParallel(module)` for a module on the device "jax"."""

    module: nn.Module
    _mesh: Mesh
    _pin: Pin

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Returns the module's result for a global batch, which is split over all devices in
        dimension 0.
        """
        inputs, kwargs = tree_map(self._split, (inputs, kwargs))
        return self.module(*inputs, **kwargs)

    def _split(self, value: Any) -> Any:
        if is_tensor(value) and value.ndim and not torch.compiler.is_dynamo_compiling():
            _check_is_global(value)
        return self._pin(value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_pin"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._pin = split(self._mesh, tuple(self._mesh.axis_names), 0)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Does nothing: gradients accumulate in `.grad` as without a wrapper."""
        yield

    @contextmanager
    def join(self, *_: Any, **__: Any) -> Iterator[None]:
        """Does nothing: a batch is global, and the same in all processes."""
        yield

    def register_comm_hook(self, *_: Any) -> None:
        """Not supported.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "communication hooks are not supported: the gradient of a global loss needs no "
            "communication"
        )


def _check_is_global(value: torch.Tensor) -> None:
    if active.trace is not None or jax.process_count() == 1:
        return
    if placement_of(read(value.detach())) is None:
        raise RuntimeError(
            "DistributedDataParallel got a batch that is local to this process, but batches are "
            "global here: take them, with their labels, from calque.sharding.loader(data_loader, "
            "P('data')), which joins those of all processes"
        )


def install() -> None:
    """Support modules whose parameters are on the device."""
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
                "FullyShardedDataParallel flattens parameters for its own collectives: for a "
                "module on the device 'jax', use torch.distributed.fsdp.fully_shard"
            )
        older(self, module, *args, **kwargs)

    FullyShardedDataParallel.__init__ = refused  # type: ignore[method-assign]
    synced = nn.SyncBatchNorm.forward

    @functools.wraps(synced)
    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        return nn.BatchNorm1d.forward(self, input) if _is_global(input) else synced(self, input)

    nn.SyncBatchNorm.forward = forward  # type: ignore[method-assign]


def _is_global(value: torch.Tensor) -> bool:
    """Returns True for a batch that already spans all processes."""
    if not is_tensor(value):
        return False
    if active.trace is not None or torch.compiler.is_dynamo_compiling():
        return True
    return placement_of(read(value.detach())) is not None


def _init(self: Any, module: nn.Module) -> None:
    nn.Module.__init__(self)
    self.__class__ = JaxDistributedDataParallel
    self.module = module
    placed = [p for p in map(placement, module.parameters()) if p is not None and p.mesh]
    on: Any = placed[0].mesh if placed else mesh(data=-1)
    self._mesh = on
    self._pin = split(on, tuple(on.axis_names), 0)
    for tensor in [*module.parameters(), *module.buffers()]:
        if is_tensor(tensor) and placement_spec(tensor) is None:
            shard(tensor, P(), self._mesh)
