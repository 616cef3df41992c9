"""Reads by the host of arrays of which this process has only a part.

Reading such an array needs all processes. Printing a value in one process would hang, so it raises
an error with a remedy.
"""

from typing import Any

import jax
import numpy as np


class ElsewhereError(RuntimeError):
    """A process needs values that other processes hold."""


def is_here(array: Any) -> bool:
    """Returns True if this process can read the whole array by itself."""
    return getattr(array, "is_fully_addressable", True) or array.is_fully_replicated


def check_here(array: Any, use: str) -> None:
    """Raise ElsewhereError if this process holds only a part of an array.

    Args:
        array: a JAX or NumPy array.
        use: the use of the array, as the end of the sentence "a tensor is".
    """
    if is_here(array):
        return
    raise ElsewhereError(
        f"a tensor of shape {tuple(array.shape)} and dtype {array.dtype}{where(array)} is {use}, "
        f"but process {jax.process_index()} of {jax.process_count()} holds only a part of it. In "
        "every process, call calque.sharding.gather(tensor), which gives the whole tensor to "
        "each; or reduce it first (its sum() is available everywhere). "
        "calque.sharding.local(tensor) gives the part in this process, and "
        "torch.distributed.checkpoint saves each process's own part"
    )


def on_host(array: Any) -> np.ndarray:
    """Returns the elements of an array that is whole in this process.

    JAX raises an error for a sharded array without elements.
    """
    return np.asarray(array) if array.size else np.empty(array.shape, array.dtype)


def values(array: Any, use: str) -> np.ndarray:
    """Returns the elements of an array on the host.

    Raises:
        ElsewhereError: other processes hold some of them.
    """
    check_here(array, use)
    return on_host(array)


def own_values(array: object) -> np.ndarray:
    """Returns the elements that this process holds, each at least once; in their shape if it has
    all.
    """
    if is_here(array):
        return on_host(array)
    return np.concatenate([np.asarray(part).reshape(-1) for part in own_shards(array).values()])


def own_shards(array: Any) -> dict[str, Any]:
    """Returns the distinct parts of an array in this process, by their position in the array."""
    return {_as_text(shard.index, array.shape): shard.data for shard in array.addressable_shards}


def where(array: Any) -> str:
    """Returns a description of an array's sharding, as the end of a sentence."""
    spec = getattr(array.sharding, "spec", None)
    return "" if spec is None else f", placed P{tuple(spec)}".replace(",)", ")")


def explained(error: RuntimeError, arrays: Any, use: str) -> RuntimeError:
    """Returns an ElsewhereError for JAX's error that it cannot fetch an array; other errors
    unchanged.
    """
    if "non-addressable" in str(error):
        for array in arrays:
            try:
                check_here(array, use)
            except ElsewhereError as elsewhere:
                return elsewhere
    return error


def _as_text(index: Any, shape: Any) -> str:
    bounds = (part.indices(size)[:2] for part, size in zip(index, shape))
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in bounds) + "]"
