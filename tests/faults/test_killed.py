"""A process that is killed while it saves has lost no checkpoint that was complete."""

import os
import random
import signal
import subprocess
import sys
import time

import torch

PROGRAM = """
import os, sys, torch, calque
model = torch.nn.Linear(64, 64).to("jax")
optimizer = torch.optim.Adam(model.parameters())
count = torch.zeros((), device="jax")

@calque.jit
def step(x):
    count.add_(1)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

x = torch.ones(4, 64, device="jax")
while True:
    step(x)
    new = sys.argv[1] + ".new"
    torch.save([count, model.state_dict(), optimizer.state_dict()], new)
    os.replace(new, sys.argv[1])
    print(int(count.item()), flush=True)
"""


def test_the_latest_checkpoint_is_whole(tmp_path):
    path = tmp_path / "checkpoint"
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    saved = [process.stdout.readline() for _ in range(10)]
    time.sleep(random.uniform(0, 0.05))
    process.send_signal(signal.SIGKILL)
    saved += process.communicate()[0].splitlines(keepends=True)
    complete = [int(line) for line in saved if line.endswith("\n")]
    count, weights, moments = torch.load(path)
    assert count.item() in (complete[-1], complete[-1] + 1)
    assert all(value.isfinite().all() for value in weights.values())
    assert {s["step"].item() for s in moments["state"].values()} == {count.item()}
