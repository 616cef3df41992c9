"""Threads, forks, and what importing calque leaves alone."""

import subprocess
import sys
import threading

import torch
from torch import nn

import calque  # noqa: F401


def train(seed: int, device: str) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4 + seed), nn.Tanh(), nn.Linear(4 + seed, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    model.to(device)
    x = torch.randn(8, 4, generator=generator).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_threads_train_different_models_at_once() -> None:
    results: dict[int, list[float]] = {}

    def work(seed: int) -> None:
        results[seed] = train(seed, "jax")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        torch.testing.assert_close(
            torch.tensor(results[seed]), torch.tensor(train(seed, "cpu")), rtol=1e-4, atol=1e-5
        )


ALONE = """
import importlib, threading, warnings
import jax, jax.numpy as jnp, torch
from torch import nn

before = dict(jax.config.values)
import calque
import calque as again
importlib.reload(calque)
assert again is calque

x = torch.arange(3, device="jax") + torch.ones(3, dtype=torch.float64, device="jax")
assert x.dtype == torch.float64
assert jnp.arange(3).dtype == jnp.int32 and jnp.ones(2).dtype == jnp.float32
assert not jax.config.jax_enable_x64
seen = []
thread = threading.Thread(target=lambda: seen.append(jnp.arange(3).dtype))
thread.start(); thread.join()
assert seen == [jnp.int32]
assert dict(jax.config.values) == before

assert torch.get_default_device().type == "cpu" and torch.ones(2).device.type == "cpu"
assert not torch.__future__.get_swap_module_params_on_conversion()
assert "torch._dynamo" not in __import__("sys").modules
"""

COMPILED = """
import torch, calque
from torch import nn
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
x = torch.ones(2, 4)
assert torch.compile(lambda x: x + 1)(x).tolist() == (x + 1).tolist()  # by inductor
on_device = torch.compile(model.to("jax"), backend="eager")
model.compile(backend="eager")
assert model(x.to("jax")).device.type == on_device(x.to("jax")).device.type == "jax"
"""

FORKED = """
import os, warnings
warnings.simplefilter("ignore")
import torch, calque
x = torch.ones(3, device="jax") + 1
pid = os.fork()
if pid == 0:
    try:
        torch.manual_seed(1)
        torch.ones(2) + 1
        x + 1
    except RuntimeError as error:
        os._exit(7 if "spawn" in str(error) else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert (x + 1).tolist() == [3, 3, 3]
"""


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_calque_leaves_jax_and_torch_alone_and_a_forked_child_does_not_hang() -> None:
    run(ALONE + FORKED)


def test_torch_compile_works_on_the_cpu_and_around_the_device() -> None:
    run(COMPILED)
