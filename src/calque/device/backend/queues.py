"""Tensors of the device in queues and pipes between processes, which go through the CPU.

PyTorch sends a storage by a handle to its memory, which another process opens; the device's memory
is XLA's own. So the bytes are sent, and the receiver has a copy on its device. Tensors of one
storage that travel together still share one.

A queue pickles in a separate thread, where an exception would only be printed, and the receiver
would wait forever. So the exception is sent instead, and the receiver raises it.

A forked child cannot make the tensors that it receives. An exception would end it before it has
read the message (`multiprocessing.Pool` then waits forever), so it gets tensors without values, and
raises when it uses them.
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

_FEEDER = "QueueFeederThread"  # the name that multiprocessing gives it


class _Absent(Cell):
    """Takes the place of the array of a tensor that a forked child has received."""

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
    """Returns a function's result, or in a queue's thread its exception,
    to be raised by the receiver.
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
    """Returns the tensor that was sent; in a forked child one that raises when it is used."""
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
    """Make processes send the device's tensors this way; other tensors are sent as before."""
    reduction.register(torch.UntypedStorage, _reduce_storage)
    for kind in (torch.Tensor, torch.nn.Parameter):
        reduction.register(kind, _reduce_tensor)
