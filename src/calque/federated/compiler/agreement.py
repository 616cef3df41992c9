"""Checks that several processes run a program with the same arguments."""

import zlib

import jax
import numpy as np
from jax.experimental import multihost_utils

from calque.federated.errors import type_error


def require_same(argument: object, clients: int) -> None:
    """Compare an argument with those of the other processes, waiting for all of them.

    Arrays that are sharded over the processes are not compared.

    Raises:
        FederatedTypeError: some processes have a different argument; the error names them.
    """
    digest = zlib.crc32(str(clients).encode())
    for leaf in jax.tree.leaves(argument):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            continue
        array = np.ascontiguousarray(leaf)
        digest = zlib.crc32(f"{array.dtype}{array.shape}".encode(), digest)
        digest = zlib.crc32(array.view(np.uint8).reshape(-1).data, digest)
    found = np.asarray(multihost_utils.process_allgather(np.array(digest, np.uint32)))
    if (found == found[0]).all():
        return
    odd = ", ".join(str(process) for process in np.flatnonzero(found != found[0]))
    raise type_error(
        f"a computation on several processes has different arguments in process {odd} than in "
        "process 0",
        "Give all processes the same arguments: the same seeds, files and numbers of clients.",
    )
