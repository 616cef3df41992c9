"""Sends tensors of the device through queues and pipes between processes, by way of the CPU.

PyTorch sends a handle to a storage's memory, which another process opens, but the device's memory
belongs to XLA. So the bytes are sent, and the receiver has a copy on its device. Tensors that share
a storage and are sent together still share it.

A queue pickles in a separate thread, where an exception would only be printed, and the receiver
would hang. So the exception is sent instead, and the receiver raises it.

A forked child cannot create the tensors that it receives. An exception would end it before it has
read the message (`multiprocessing.Pool` would then hang), so it gets tensors without values, whose
use raises.
"""

import threading
from multiprocessing import reduction
from typing import Any, NoReturn

import numpy as np
import torch
from torch.multiprocessing import reductions

from calque.device.backend import forks
from calque.device.kernels.storage import allocate, host_bytes
from calque.device.memory.cell import Cell
from calque.upstream import torch_c

_FEEDER = "QueueFeederThread"  # multiprocessing's name for the thread


class _Absent(Cell):
    """Replaces the array of a tensor that a forked child has received."""

    __slots__ = ()

    @property
    def array(self) -> NoReturn:  # type: ignore[override]
        """Raises the error for forked processes."""
        forks.refuse()


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    if storage.device.type != "jax":
        return reductions.reduce_storage(storage)
    return _in_a_queue(lambda: (_storage_of, (host_bytes(storage).numpy(),)))


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if tensor.device.type != "jax":
        return reductions.reduce_tensor(tensor)
    return _in_a_queue(lambda: (_tensor_of, reductions.reduce_tensor(tensor)))


def _in_a_queue(reduce: Any) -> Any:
    """Returns a function's result or, in a queue's thread, its exception, which the receiver
    raises.
    """
    try:
        if forks.is_bad():
            forks.refuse()
        return reduce()
    except Exception as error:
        if threading.current_thread().name != _FEEDER:
            raise
        return _fail, (type(error).__name__, str(error))


def _storage_of(content: np.ndarray) -> torch.UntypedStorage:
    content_on_host = torch.from_numpy(content).untyped_storage()
    return content_on_host if forks.is_bad() else allocate(content.size).copy_(content_on_host)


def _tensor_of(rebuild: Any, arguments: tuple[Any, ...]) -> torch.Tensor:
    """Returns the received tensor; in a forked child, a tensor whose use raises."""
    if not forks.is_bad():
        return rebuild(*arguments)
    kind, storage, (_, size, _, requires_grad) = arguments
    made = torch_c.acc.create_empty_tensor(tuple(size), storage.dtype)
    cell = Cell(None)  # type: ignore[arg-type]
    cell.__class__ = _Absent
    made.untyped_storage().cell = cell  # type: ignore[attr-defined]
    if issubclass(kind, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad)
    return made.requires_grad_(requires_grad)


def _fail(kind: str, message: str) -> NoReturn:
    raise RuntimeError(f"the sender could not send a tensor of the jax device: {kind}: {message}")


def install() -> None:
    """Make processes send the device's tensors in this way."""
    reduction.register(torch.UntypedStorage, _reduce_storage)
    for kind in (torch.Tensor, torch.nn.Parameter):
        reduction.register(kind, _reduce_tensor)
