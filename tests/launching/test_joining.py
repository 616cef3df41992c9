"""Processes that `calque launch` or torchrun has started compute together."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.devices import LAUNCH, devices

STEPS = """
    import os, signal, sys, time
    import numpy as np
    from calque.launching import join

    join()
    import jax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    spread = NamedSharding(mesh, PartitionSpec("d"))
    x = jax.make_array_from_callback((8,), spread, lambda index: np.arange(8.0)[index])
    step = jax.jit(lambda x: (x + x.sum()) / 9)
    for _ in range(50):
        x = step(x)  # nothing is read
    os.write(1, f"process {jax.process_index()}: {float(x.sum()):.4f}\\n".encode())
    if len(sys.argv) > 1 and jax.process_index() == 1:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        time.sleep(10)
        os.write(1, b"still here\\n")
    step(x)
    step(x)
"""


def run(tmp_path: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(STEPS))
    line = [*command[:-1], str(program), *command[-1].split()]
    return subprocess.run(
        line, capture_output=True, text=True, timeout=120, env=os.environ | environment
    )


def test_torchrun_starts_processes_that_need_not_read_a_value(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "",
        **devices(2),
        OMP_NUM_THREADS="1",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": 28.0000") == 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_process_that_is_ended_is_named_and_the_others_end(tmp_path: Path, name: str) -> None:
    done = run(tmp_path, *LAUNCH, "-n", "2", "--devices", "2", name)
    assert done.returncode == 128 + signal.Signals[name]
    assert done.stdout.count(": 28.0000") == 2
    assert "still here" not in done.stdout
    assert f"calque launch: process 1 was killed by {name}" in done.stderr


@pytest.mark.conformance
def test_without_a_launcher_the_others_end_and_name_the_one_that_died(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(STEPS))
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(one.getsockname()[1])}
    environment = os.environ | devices(2) | where | {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(program), "SIGKILL"]
    first, second = (
        subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment | {"RANK": rank}
        )
        for rank in "01"
    )
    with first, second:
        try:
            second.communicate(timeout=100)
            _, said = first.communicate(timeout=30)  # the time limit of the others
        finally:
            first.kill()
            second.kill()
    assert second.returncode == -signal.SIGKILL
    assert first.returncode != 0
    assert "stopped sending heartbeats):\n1\n" in said, said
