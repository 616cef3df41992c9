"""Communication of Python values (decisions, file names) between the processes of a program."""

import pickle
from typing import TypeVar

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather, sync_global_devices

T = TypeVar("T")


def of_all(value: np.ndarray) -> np.ndarray:
    """Returns the values of all processes, in the order of their ranks.

    Args:
        value: an array of the same shape and dtype in each process; all processes must call this.
    """
    if jax.process_count() == 1:
        return value[None]
    own = np.ascontiguousarray(value)
    # As bytes, because JAX narrows dtypes.
    everyone = np.asarray(process_allgather(np.frombuffer(own.tobytes(), np.uint8)))
    return np.frombuffer(everyone.tobytes(), own.dtype).reshape(-1, *own.shape)


def broadcast(value: T, source: int = 0) -> T:
    """Returns the value of one process, in all processes.

    Args:
        value: an object that can be pickled.
        source: the number of the process.
    """
    if jax.process_count() == 1:
        return value
    own = pickle.dumps(value) if jax.process_index() == source else b""
    sizes = of_all(np.array([len(own)]))
    padded = np.frombuffer(own.ljust(int(sizes.max()), b"\0"), np.uint8)
    return pickle.loads(of_all(padded)[source].tobytes())


def barrier(name: str) -> None:
    """Wait until all processes have reached this point."""
    if jax.process_count() > 1:
        sync_global_devices(name)
