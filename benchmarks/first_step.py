"""The first training step of a process, eager and jitted, with and without programs of an earlier
process; and what each new shape of a small model costs in time and memory.

python -m benchmarks.first_step [--quick]

Each figure is of a process of its own, in CPU time; the processes of all candidates alternate.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

from benchmarks import common

PROGRAM = """
import json, sys, time
import torch, jax, calque
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        images = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
        images += [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.images = nn.Sequential(*images)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.layer(self.images(x).flatten(2).transpose(1, 2)).mean(1))

model = Network().to("jax")
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
x, y = torch.randn(8, 3, 32, 32).to("jax"), torch.randint(0, 10, (8,)).to("jax")

def step(x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss

step = calque.jit(step) if sys.argv[1] == "jit" else step
start = time.process_time()
step(x, y).item()
print(json.dumps(time.process_time() - start))
"""

SHAPES = """
import json, os, sys, time
import torch, calque
from torch import nn

torch.set_num_threads(1)
calque.compilation_cache(None)
count = int(sys.argv[2])
model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)).to("jax")
run = calque.jit(model, max_programs=1000) if sys.argv[1] == "jit" else model

def call(rows):
    run(torch.ones(rows, 8).to("jax")).cpu()

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

for rows in range(1, 4):
    call(rows)
before, start = resident(), time.process_time()
for rows in range(4, 4 + count):
    call(rows)
taken = time.process_time() - start
print(json.dumps([taken / count, (resident() - before) / count]))
"""


def run(program: str, *arguments: str, cache: str = "off") -> object:
    """Returns what a program prints in a fresh process, whose compiled programs are kept in a
    folder.
    """
    environment = os.environ | {"CALQUE_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def main() -> None:
    rounds, shapes = (1, 10) if common.quick(__doc__) else (5, 60)
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for mode in ("eager", "jit"):
            with tempfile.TemporaryDirectory() as folder:
                for process in ("first", "second"):
                    taken = run(PROGRAM, mode, cache=folder)
                    assert isinstance(taken, float)
                    seconds.setdefault((mode, process), []).append(taken)
    median = {key: statistics.median(values) for key, values in seconds.items()}
    rows = []
    for mode in ("eager", "jit"):
        first, second = median[mode, "first"], median[mode, "second"]
        jitted = first / median["jit", "first"]
        rows.append([mode, f"{first:.2f}", f"{second:.2f}", f"{second / first:.2f}"])
        rows[-1].append(f"{jitted:.2f}")
    header = ["first step", "first process, s", "second, s", "second / first", "first / jit's"]
    common.table("First training step, CPU time", header, rows)

    rows = []
    for mode in ("eager", "jit"):
        found = run(SHAPES, mode, str(shapes))
        assert isinstance(found, list)
        rows.append([mode, f"{found[0]:.3f}", f"{found[1]:.1f}"])
    common.table("Each new shape of three layers", ["", "CPU time, s", "memory, MB"], rows)


if __name__ == "__main__":
    main()
