"""Runs one program at a time on the CPU devices of a process.

XLA's CPU client runs each device's part of a program in one pool of threads, where a part waits in
a collective for the other parts. After a few hundred programs have been started without reading
their results, parts of later programs occupy the threads that earlier ones need, and the process
ends with an error (as in JAX without calque). So calque waits for a program over several CPU
devices, unless it is known to have no collective: a program with collectives starts when no other
is running, and no program before it in the pool's queue waits. GPUs and TPUs have their own queues
and are not affected.

`one_program` handles programs of several processes.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax

from calque.upstream.jax_internals import ArrayImpl

_OF_COLLECTIVES = ("channel_id=", "replica_groups=", "source_target_pairs=")


@lru_cache(maxsize=1)
def is_crowded() -> bool:
    """Returns True if this process has several CPU devices."""
    return jax.default_backend() == "cpu" and jax.local_device_count() > 1


def communicates(compiled: jax.stages.Compiled) -> bool:
    """Returns True if a program's devices exchange values, or if that is not known."""
    text = compiled.as_text()
    return text is None or exchanges(text)


def exchanges(text: str) -> bool:
    """Returns True if the text of a compiled program has collectives."""
    return any(attribute in text for attribute in _OF_COLLECTIVES)


def settled(results: Any) -> Any:
    """Returns a program's results, waiting for them if they are distributed over several CPU
    devices.

    Args:
        results: an array, or a container of arrays. Only the first array that is distributed is
            waited for.
    """
    if is_crowded():
        for array in (results,) if type(results) is ArrayImpl else jax.tree.leaves(results):
            if type(array) is ArrayImpl and array.sharding.num_devices > 1:
                array.block_until_ready()
                break
    return results


def waiting(handlers: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
    """Returns what makes arrays of a program's results, and waits for them.

    No Python code runs in it, and so no exception that another thread sets: what the program has
    been given the memory of would be lost.

    Args:
        handlers: what makes an array of each result.
        shardings: theirs. The first one that is spread stands for all.
    """
    found = list(handlers)
    for index, sharding in enumerate(shardings):
        if sharding.num_devices > 1:
            found[index] = found[index].wrap(ArrayImpl.block_until_ready)
            break
    return found
