"""Connects a process to the other processes of a program."""

import os
import socket
from datetime import timedelta

import jax
import torch

from calque.device.backend import printing_parts
from calque.device.runtime import one_program

HEARTBEAT_SECONDS = 10
"""If a process sends no heartbeat for this time, it counts as dead, and JAX ends the others with
its number.
"""

_MEETING_SECONDS = 300


def join() -> None:
    """Connect the processes of a program, so that JAX sees the devices of all of them.

    Like `jax.distributed.initialize`, but it reads the rank from the environment that `calque
    launch` and `torchrun` set (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`, and
    `LOCAL_RANK`, `LOCAL_WORLD_SIZE` on machines with several processes), detects within seconds
    that another process has died, and leaves SIGTERM unchanged. Without these variables JAX uses
    the cluster's environment (Slurm, Open MPI, TPU). Does nothing in a process that is already
    connected. From then on, on CPUs, each call of a program that spans several processes waits for
    its results, because several concurrent calls could deadlock.

    Call it before anything is computed; `calque launch` does so for the program that it starts.

    Raises:
        RuntimeError: JAX has already computed something.
        ValueError: neither the environment nor a cluster describes the processes.
    """
    if not jax.distributed.is_initialized():
        jax.config.update("jax_enable_preemption_service", False)  # it would intercept SIGTERM
        if "RANK" in os.environ:
            _join_by_environment()
        else:
            jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
    one_program.install()
    printing_parts.install()


def _join_by_environment() -> None:
    several = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1
    jax.distributed.initialize(
        _coordinator(),
        int(os.environ["WORLD_SIZE"]),
        int(os.environ["RANK"]),
        local_device_ids=int(os.environ["LOCAL_RANK"]) if several else None,
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    )


def _coordinator() -> str:
    """Returns the address at which the first process listens.

    `calque launch` passes it. torchrun itself listens on the port in the environment; there the
    first process publishes another port.
    """
    if "CALQUE_COORDINATOR" in os.environ:
        return os.environ["CALQUE_COORDINATOR"]
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return f"{host}:{port}"
    waits = timedelta(seconds=_MEETING_SECONDS)
    store = torch.distributed.TCPStore(host, port, is_master=False, timeout=waits)
    key = f"calque/coordinator/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if os.environ["RANK"] == "0":
        with socket.socket() as one:
            one.bind(("", 0))
            store.set(key, str(one.getsockname()[1]))
    return f"{host}:{store.get(key).decode()}"
