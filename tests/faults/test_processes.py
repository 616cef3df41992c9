"""A process that is killed in a training ends the others; new ones go on where it was saved."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TRAINING = """
import os, signal, sys, time
import jax, numpy as np, torch
from calque.federated import learning

directory, result, dies = sys.argv[1:]
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(4, 3))
rng = np.random.default_rng(0)
data = [
    {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(0, 3, n)}
    for n in (5, 3, 8, 4, 6)
]
options = {}
if jax.device_count() > 1:
    options["mesh"] = jax.make_mesh((jax.device_count(),), ("clients",))
process = learning.scaffold(module, clients=5, batch_size=4, shuffle=True, **options)
with learning.Checkpoints(directory) as checkpoints:
    state = checkpoints.latest(process.initialize())
    os.write(1, f"begins at {int(state.round)}\\n".encode())
    while int(state.round) < 6:
        if int(state.round) == int(dies) and jax.process_index() == 1:
            with open(result + ".killed", "w") as file:
                file.write(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        state, _ = process.next(state, data)
        checkpoints.save(state)
found = learning.Evaluation(module, **options)(state, data)
if jax.process_index() == 0:
    np.savez(result, *jax.tree.leaves((state, found)))
"""


def launch(program: Path, options: list[Any], *arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "calque", "launch", *options, program, *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=280)


@pytest.mark.conformance
@pytest.mark.timeout(900)
def test_training_goes_on_in_new_processes_after_one_was_killed(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    program = tmp_path / "training.py"
    program.write_text(TRAINING)
    one = launch(program, ["-n", 1, "--devices", 1], tmp_path / "one", tmp_path / "one.npz", 99)
    assert one.returncode == 0, one.stderr[-4000:]

    options, rest = ["-n", 2, "--devices", 4], (tmp_path / "two", tmp_path / "two.npz")
    killed = launch(program, options, *rest, 3)
    assert killed.returncode == 137
    assert "process 1 was killed by SIGKILL" in killed.stderr
    # The other process ends when JAX detects that the first one is dead, or is ended.
    assert "tasks are unhealthy" in killed.stderr or "process 0 is being stopped" in killed.stderr
    assert time.time() - float(Path(f"{rest[1]}.killed").read_text()) < 60
    again = launch(program, options, *rest, 99)
    assert again.returncode == 0, again.stderr[-4000:]
    assert again.stdout.count("begins at 3") == 2
    with np.load(tmp_path / "one.npz") as a, np.load(tmp_path / "two.npz") as b:
        assert a.files == b.files
        for name in a.files:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-6)
