"""Checks that values that every process supplies are the same in all processes.

A value that every process holds (a parameter before it is sharded, a number, the random state) is
one value of the program. JAX uses each process's own value without a check. Here, their digests are
compared, so that a different seed or file is an error rather than an inconsistent model.
"""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import NamedSharding, Sharding
from jax.sharding import PartitionSpec as P


class DisagreementError(RuntimeError):
    """Processes have different values for one value of the program."""


class _Names(threading.local):
    current: str | None = None


_names = _Names()


@contextmanager
def naming(name: str) -> Iterator[None]:
    """A context manager that sets the name of values in errors, such as a parameter's name."""
    previous, _names.current = _names.current, name
    try:
        yield
    finally:
        _names.current = previous


def spans(placement: Sharding) -> bool:
    """Returns True if a placement has devices of other processes."""
    return not placement.is_fully_addressable


def spread_out(values: object, placement: Sharding) -> jax.Array:
    """Returns values of each process as one array over the devices of several processes.

    Args:
        values: an array of this process, or a NumPy array.
        placement: a placement over devices of several processes, each of which calls this.

    Raises:
        DisagreementError: the values are not the same in all processes.
    """
    host = np.asarray(values)
    check(host, placement)
    return jax.make_array_from_callback(host.shape, placement, lambda index: host[index])


def check(host: np.ndarray, placement: Sharding) -> None:
    """Raise DisagreementError if the processes of a placement have different values."""
    check_all([host], placement)


def check_all(hosts: Sequence[np.ndarray], placement: Sharding) -> None:
    """Like `check`, for several values, each with one per process."""
    processes = {device.process_index for device in placement.device_set}
    if len(processes) < jax.process_count() or not hosts:
        return  # JAX's collectives need all processes, but the others do not call this
    digests = np.stack(list(map(_digest, hosts)))
    together = np.frombuffer(hashlib.sha256(digests.tobytes()).digest(), np.uint32)
    if not _others(process_allgather(together)):
        return
    everyone = process_allgather(np.frombuffer(np.int64(len(hosts)).tobytes(), np.uint32))
    if _others(everyone):
        raise DisagreementError(
            "the processes do not run the same program: they called it with different numbers of "
            "process-local values"
        )
    for host, each in zip(hosts, np.swapaxes(process_allgather(digests), 0, 1)):
        others = _others(each)
        if others:
            raise _disagreement(host, others)


def check_program(name: str, digest: bytes, placement: Sharding) -> None:
    """Raise DisagreementError if the processes of a placement compiled different programs.

    Args:
        name: the name of the program.
        digest: a digest of its text.
        placement: a placement over the devices of several processes, each of which calls this.
    """
    processes = {device.process_index for device in placement.device_set}
    if len(processes) < jax.process_count():
        return
    others = _others(_of_all(np.frombuffer(digest, np.uint32)))
    if others:
        raise DisagreementError(
            f"the processes do not run the same program: {name!r} of process "
            f"{', '.join(map(str, others))} differs from that of process 0. A Python number, a "
            "shape or a branch (a learning rate, the length of a process's own data, the rank) "
            "is part of a compiled program: use the same one in every process"
        )


def _of_all(value: np.ndarray) -> np.ndarray:
    """Like JAX's `process_allgather`, which cannot be used here because its program would be
    checked.
    """
    devices = np.array(jax.devices()).reshape(jax.process_count(), -1)
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.sharding.Mesh(devices, ("processes", "devices"), axis_types=auto)
    shape, spread = (jax.process_count(), *value.shape), NamedSharding(mesh, P("processes"))
    parts = jax.make_array_from_callback(shape, spread, lambda index: value[None])
    return np.asarray(_whole(NamedSharding(mesh, P()))(parts))


@lru_cache(maxsize=1)
def _whole(placement: NamedSharding) -> Any:
    return jax.jit(lambda parts: parts, out_shardings=placement)


def check_shapes(host: np.ndarray) -> None:
    """Raise DisagreementError if the processes have parts of different shapes or dtypes."""
    mine = np.frombuffer(repr((host.shape, host.dtype.str)).encode().ljust(128)[:128], np.uint8)
    everyone = process_allgather(mine)
    if _others(everyone):
        said = [bytes(one).decode().strip() for one in everyone]
        each = "; ".join(f"process {rank}: {one}" for rank, one in enumerate(said))
        raise DisagreementError(
            f"the processes have batches of different shapes or dtypes ({each}). Each needs as "
            "many rows: use a DistributedSampler, and drop_last=True to leave out a smaller "
            "last batch"
        )


def _digest(host: np.ndarray) -> np.ndarray:
    kind = repr((host.shape, host.dtype.str)).encode()
    digest = hashlib.sha256(kind + np.ascontiguousarray(host).tobytes()).digest()
    return np.frombuffer(digest, np.uint32)


def _others(everyone: Any) -> list[int]:
    """Returns the processes whose values differ from the first process's."""
    return [rank for rank, one in enumerate(everyone) if (one != everyone[0]).any()]


def _disagreement(host: np.ndarray, others: list[int]) -> DisagreementError:
    name = "a tensor" if _names.current is None else f"{_names.current!r}"
    if host.dtype == np.uint64 and host.shape == (2,):
        name = "the random state"
    ranks = ", ".join(map(str, others))
    return DisagreementError(
        f"{name} of shape {host.shape} and dtype {host.dtype} is not the same in all processes: "
        f"that of process {ranks} differs from that of process 0. A tensor that is spread over a "
        "mesh or replicated is one value of the whole program: pass the same seed to "
        "torch.manual_seed in every process, and load the same file. For a process's own part "
        "of a batch, use calque.sharding.loader"
    )
