"""Several processes share the clients, and give what one does."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.devices import LAUNCH

ROUND = """
import sys
import jax, numpy as np, torch
from calque import federated as fed
from calque.federated import learning

def close(a, b):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * np.abs(b).max(initial=0))

mesh = jax.make_mesh((jax.device_count(),), ("clients",))

@fed.computation("{float32[3]}@CLIENTS", "{float32}@CLIENTS")
def both(x, weight):
    mean = fed.federated_mean(x, weight)
    off = x - fed.federated_broadcast(mean)
    return {"mean": mean, "off": off, "all": fed.federated_collect(x), "most": fed.federated_max(x)}

rng = np.random.default_rng(0)
x = rng.normal(size=(11, 3)).astype(np.float32)
weight = rng.uniform(size=11).astype(np.float32)
found = both.configured(mesh=mesh)(x, weight)
one = both(x, weight)
for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(one), strict=True):
    close(a, b)
    assert a.is_fully_addressable
if jax.process_index() == 0:  # no other process is asked for this
    print("the sum is", float(found["off"].sum()) + 0.0)

lengths = (3, 1, 2, 3, 0, 2, 3, 1)
own = [
    {"x": rng.normal(size=(n, 20)).astype(np.float32), "y": rng.integers(0, 3, n)} for n in lengths
]
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 3))
wanted = learning.fed_avg(module, batch_size=2)
process = learning.fed_avg(module, batch_size=2, mesh=mesh)
first = 4 * jax.process_index()
staged = learning.stage_own(own[first : first + 4], mesh)
assert not staged.elements["x"].is_fully_addressable
state, same = process.initialize(), wanted.initialize()
for _ in range(5):
    state, metrics = process.next(state, staged)
    same, _ = wanted.next(same, own)
for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(same), strict=True):
    close(a, b)

def centred(output, target):
    output = output - output.mean(0, keepdim=True)
    return torch.nn.functional.cross_entropy(output, target, reduction="none")


try:
    mixing = learning.fed_avg(torch.nn.Linear(20, 3), centred, batch_size=2, mesh=mesh)
    mixing.next(mixing.initialize(), staged)
except fed.ClientError as error:
    assert "not a multiple of the batch size" in str(error), error
else:
    raise AssertionError("no error")

x[4, 1] = np.nan
try:
    both.configured(mesh=mesh)(x, weight)
except fed.ClientError as error:
    assert "client 4" in str(error), error
else:
    raise AssertionError("no error")
try:
    both.configured(mesh=mesh)(x + jax.process_index(), weight)
except fed.FederatedTypeError as error:
    assert "different arguments in process 1" in str(error), error
else:
    raise AssertionError("no error")
print("equal", flush=True)
"""


def launch(program: Path, options: list[Any], *arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [*LAUNCH, *options, program, *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=280)


@pytest.mark.conformance
def test_two_processes_give_what_one_does(tmp_path: Path) -> None:
    program = tmp_path / "round.py"
    program.write_text(ROUND)
    done = launch(program, ["-n", 2, "--devices", 4])
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("equal") == 2
    assert done.stdout.count("the sum is") == 1
