"""A process becomes one of several that compute together."""

import os

import jax

HEARTBEAT_SECONDS = 10
"""A process that is not heard of for so long is dead, and JAX ends the others with its number."""


def join() -> None:
    """Join the processes of a program: JAX then has the devices of all of them.

    As `jax.distributed.initialize`, but reads where it stands from the environment that
    `calque launch` and `torchrun` make (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`, and
    `LOCAL_RANK`, `LOCAL_WORLD_SIZE` on machines with several processes), finds within seconds that
    another process has died, and leaves SIGTERM its meaning. Without that environment JAX asks the
    cluster (Slurm, Open MPI, TPU). A process that has joined stays as it is.

    To be called before anything is computed; `calque launch` has done it for the program it starts.

    Raises:
        RuntimeError: JAX has computed something before.
        ValueError: neither the environment nor a cluster says which processes there are.
    """
    if jax.distributed.is_initialized():
        return
    jax.config.update("jax_enable_preemption_service", False)  # it swallows SIGTERM
    if "RANK" not in os.environ:
        jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
        return
    several = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1
    jax.distributed.initialize(
        f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        int(os.environ["WORLD_SIZE"]),
        int(os.environ["RANK"]),
        local_device_ids=int(os.environ["LOCAL_RANK"]) if several else None,
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    )
