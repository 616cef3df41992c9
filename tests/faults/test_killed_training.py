"""A training that is killed at any moment, again and again, ends as one that was left alone."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

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
    while int(state.round) < 300:
        print("round", int(state.round), flush=True)
        chosen = learning.sample_clients(4, 2, round=int(state.round))
        state, _ = process.next(state, jax.tree.map(lambda a: a[chosen], staged), clients=chosen)
        checkpoints.save(state)
np.savez(sys.argv[2], *jax.tree.leaves(state))
"""


def run(directory: Path, result: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", PROGRAM, str(directory), str(result)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.conformance
@pytest.mark.timeout(1800)
def test_ten_kills_lose_and_double_no_round(tmp_path: Path) -> None:
    draw = random.Random(0)
    kills, begun = 0, []
    process = run(tmp_path / "killed", tmp_path / "killed.npz")
    while True:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        begun.append(int(next(lines).split()[-1]))
        seen = [next(lines, None) for _ in range(draw.choice([1, 2, 3, 6]))]
        if None in seen or kills == 12:
            break
        time.sleep(draw.choice([draw.uniform(0, 0.05), draw.uniform(0, 0.3)]))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        kills += 1
        process = run(tmp_path / "killed", tmp_path / "killed.npz")
    process.stdout.read()
    process.stdout.close()
    assert process.wait() == 0
    assert kills >= 10
    assert begun == sorted(begun)  # no saved round is lost
    assert begun[-1] >= 10

    whole = run(tmp_path / "whole", tmp_path / "whole.npz")
    assert whole.stdout is not None
    whole.stdout.read()
    whole.stdout.close()
    assert whole.wait() == 0
    with np.load(tmp_path / "whole.npz") as a, np.load(tmp_path / "killed.npz") as b:
        for name in a.files:
            np.testing.assert_array_equal(a[name], b[name])
