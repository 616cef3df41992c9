"""Starts the processes of one machine, watches them, and ends them if one fails."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

GRACE_SECONDS = 5.0
"""How long the other processes may take to end by themselves after a failure."""


@dataclass(frozen=True)
class Job:
    """A program of several processes.

    Attributes:
        command: the path of a Python program, and its arguments.
        processes: the number of processes on this machine.
        devices: the number of CPU devices of each process; None leaves the platform unchanged.
        nodes: the number of machines, each with as many processes.
        node: the number of this machine.
        coordinator: the address of the first machine, with a free port; None for one machine.
        jax_port: the port for JAX on the first machine; by default the one after the coordinator's,
            which is for `torch.distributed`.
    """

    command: Sequence[str]
    processes: int = 1
    devices: int | None = None
    nodes: int = 1
    node: int = 0
    coordinator: str | None = None
    jax_port: int | None = None

    def __post_init__(self) -> None:
        if self.processes < 1 or (self.devices is not None and self.devices < 1):
            raise ValueError("there must be at least one process, with at least one device each")
        if not 0 <= self.node < self.nodes:
            raise ValueError(
                f"machine {self.node} does not exist: the {self.nodes} machines are numbered from 0"
            )
        if self.nodes > 1 and self.coordinator is None:
            raise ValueError("several machines need a coordinator: the address of the first one")
        if self.coordinator is not None and not self.coordinator.rpartition(":")[2].isdigit():
            raise ValueError(f"a coordinator must have the form host:1234, not {self.coordinator}")

    def environment(self, local: int, coordinator: str) -> dict[str, str]:
        """Returns the environment of one of the machine's processes."""
        host, _, port = coordinator.rpartition(":")
        made = {
            "PYTHONHASHSEED": "0",  # the same order of sets in all processes
            **os.environ,
            "RANK": str(self.node * self.processes + local),
            "WORLD_SIZE": str(self.nodes * self.processes),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(self.processes),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "CALQUE_COORDINATOR": f"{host}:{self.jax_port or int(port) + 1}",
        }
        if self.devices is not None:
            flags = made.get("XLA_FLAGS", "").split()
            kept = [flag for flag in flags if "force_host_platform_device_count" not in flag]
            forced = f"--xla_force_host_platform_device_count={self.devices}"
            made |= {"XLA_FLAGS": " ".join([*kept, forced]), "JAX_PLATFORMS": "cpu"}
        return made


def start(job: Job, output: int | None = None) -> int:
    """Run a program in several processes; returns the exit status of the first that fails, or 0.

    When a process fails, a message names it, and the others, which would wait for it, are ended. If
    this process is interrupted or terminated, all are ended.

    Args:
        job: the program and its processes.
        output: a file descriptor for their standard output; by default that of this process.
    """
    coordinator = job.coordinator or f"127.0.0.1:{_free_port()}"
    if job.coordinator is None:
        job = replace(job, jax_port=_free_port())
    command = [sys.executable, "-m", "calque.launching", *job.command]
    running = {
        job.node * job.processes + local: subprocess.Popen(
            command, env=job.environment(local, coordinator), stdout=output
        )
        for local in range(job.processes)
    }
    everyone = dict(running)
    before = signal.signal(signal.SIGTERM, _interrupted)
    try:
        return _watched(running)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        _end(everyone)
        signal.signal(signal.SIGTERM, before)


def _watched(running: dict[int, subprocess.Popen[bytes]]) -> int:
    """Wait until all have ended, or until one has failed and the others have had time to report
    why.
    """
    status, deadline = 0, None
    while running and (deadline is None or time.monotonic() < deadline):
        for rank, process in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            del running[rank]
            if code and not status:
                status = code if code > 0 else 128 - code
                deadline = time.monotonic() + GRACE_SECONDS
                print(
                    f"calque launch: process {rank} {_description(code)}",
                    file=sys.stderr,
                    flush=True,
                )
        time.sleep(0.05)
    for rank in running:
        print(f"calque launch: process {rank} is being stopped", file=sys.stderr, flush=True)
    return status


def _end(processes: dict[int, subprocess.Popen[bytes]]) -> None:
    for process in processes.values():
        if process.poll() is None:
            process.kill()
    for process in processes.values():
        process.wait()


def _description(code: int) -> str:
    if code > 0:
        return f"has failed with status {code}"
    return f"was killed by {signal.Signals(-code).name}"


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
