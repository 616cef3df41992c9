"""Tensors of the device in queues and pipes between processes: they travel by the CPU.

PyTorch sends a storage by a handle to its memory, which another process opens; the device's memory
is XLA's own. So the bytes are sent, and the receiver has a copy on its device. Tensors of one
storage that travel together still share one.

A queue pickles in a thread of its own, where an exception would be printed and forgotten, and the
receiver would wait for ever. There the exception is sent instead, for the receiver to raise.
"""

import threading
from multiprocessing import reduction
from typing import Any, NoReturn

import numpy as np
import torch
from torch.multiprocessing import reductions

from calque.device.kernels.storage import allocate, host_bytes

_FEEDER = "QueueFeederThread"  # the name that multiprocessing gives it


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    if storage.device.type != "jax":
        return reductions.reduce_storage(storage)
    return _in_a_queue(lambda: (_storage_of, (host_bytes(storage).numpy(),)))


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if tensor.device.type != "jax":
        return reductions.reduce_tensor(tensor)
    return _in_a_queue(lambda: reductions.reduce_tensor(tensor))


def _in_a_queue(reduce: Any) -> Any:
    """Returns a function's result; in a queue's thread, its exception, for the receiver."""
    try:
        return reduce()
    except Exception as error:
        if threading.current_thread().name != _FEEDER:
            raise
        return _fail, (type(error).__name__, str(error))


def _storage_of(content: np.ndarray) -> torch.UntypedStorage:
    return allocate(content.size).copy_(torch.from_numpy(content).untyped_storage())


def _fail(kind: str, message: str) -> NoReturn:
    raise RuntimeError(f"the sender could not send a tensor of the jax device: {kind}: {message}")


def install() -> None:
    """Have processes send the device's tensors this way; those of other devices go as ever."""
    reduction.register(torch.UntypedStorage, _reduce_storage)
    for kind in (torch.Tensor, torch.nn.Parameter):
        reduction.register(kind, _reduce_tensor)
