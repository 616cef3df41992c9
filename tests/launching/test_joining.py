"""Processes that `calque launch` or torchrun has started compute together."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.devices import LAUNCH, devices

STEPS = """
    import os, signal, sys
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
    if sys.argv[1:] == ["die"] and jax.process_index() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
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


def test_a_process_that_is_killed_is_named_and_the_others_end(tmp_path: Path) -> None:
    done = run(tmp_path, *LAUNCH, "-n", "2", "--devices", "2", "die")
    assert done.returncode == 128 + 9
    assert done.stdout.count(": 28.0000") == 2
    assert "calque launch: process 1 was killed by SIGKILL" in done.stderr
