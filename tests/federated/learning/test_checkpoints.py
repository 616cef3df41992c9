"""States on disk, where orbax is installed: a killed process goes on as if it had not been."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import torch

from calque.federated import learning

pytest.importorskip("orbax.checkpoint")

PROGRAM = """
import sys
import jax, numpy as np, torch
from calque.federated import learning

torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(4, 3))
rng = np.random.default_rng(0)
data = [
    {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(0, 3, n)}
    for n in (5, 3, 8, 4)
]
staged = learning.stage(data)
process = learning.scaffold(module, clients=4, batch_size=4, shuffle=True)
with learning.Checkpoints(sys.argv[1]) as checkpoints:
    state = checkpoints.latest(process.initialize())
    print("begins at", int(state.round), flush=True)
    while int(state.round) < 30:
        chosen = learning.sample_clients(4, 2, round=int(state.round))
        state, _ = process.next(state, jax.tree.map(lambda a: a[chosen], staged), clients=chosen)
        checkpoints.save(state)
        print("saved", int(state.round), flush=True)
np.savez(sys.argv[2], *jax.tree.leaves(state))
"""


def run(directory: Path, result: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", PROGRAM, str(directory), str(result)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(600)
def test_a_killed_process_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", tmp_path / "whole.npz")
    assert whole.wait() == 0
    for rounds, delay in ((1, 0.0), (4, 0.013), (5, 0.031)):
        process = run(tmp_path / "killed", tmp_path / "killed.npz")
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(rounds):
            process.stdout.readline()
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    last = run(tmp_path / "killed", tmp_path / "killed.npz")
    assert last.stdout is not None
    begun = last.stdout.readline()
    assert last.wait() == 0
    last.stdout.close()
    assert whole.stdout is not None
    whole.stdout.close()
    assert int(begun.split()[-1]) >= 10
    with np.load(tmp_path / "whole.npz") as a, np.load(tmp_path / "killed.npz") as b:
        for name in a.files:
            np.testing.assert_array_equal(a[name], b[name])


def test_without_a_checkpoint_it_begins_at_the_beginning(tmp_path: Path) -> None:
    initial = learning.fed_avg(torch.nn.Linear(2, 2)).initialize()
    with learning.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest(initial) is initial
        checkpoints.save(initial)
        again = checkpoints.latest(initial)
    assert jax.tree.structure(again) == jax.tree.structure(initial)


def test_a_state_of_another_model_is_refused(tmp_path: Path) -> None:
    with learning.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(learning.fed_avg(torch.nn.Linear(2, 2)).initialize())
        with pytest.raises(ValueError, match="of another model or algorithm"):
            checkpoints.latest(learning.fed_avg(torch.nn.Linear(2, 3)).initialize())
