"""Threads, forks, and what importing calque leaves alone."""

import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import calque  # noqa: F401
from tests import new_process


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


def _retyped(row: torch.Tensor) -> None:
    row.view(torch.int32).copy_((row + 1).view(torch.int32))


WRITES = {
    "in_place": lambda row: row.add_(1),
    "copy": lambda row: row.copy_(row + 1),
    "out": lambda row: torch.add(row, 1, out=row),
    "slice": lambda row: row.__setitem__(slice(None), row + 1),
    "another_dtype": _retyped,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_threads_write_different_rows_of_a_tensor(write) -> None:
    """Each replaces the array of the whole storage, and loses nothing that others wrote to it."""
    table = torch.zeros(4, 16, device="jax")
    start, interval = threading.Barrier(4), sys.getswitchinterval()

    def work(row: torch.Tensor) -> None:
        start.wait()
        for _ in range(40):
            write(row)

    threads = [threading.Thread(target=work, args=(row,)) for row in table]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert table.unique().tolist() == [40]


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

COMPILED_AND_FORKED = """
import os, warnings
warnings.simplefilter("ignore")
import torch, calque
torch.set_num_threads(1)
double = lambda t: t * 2
jitted, fresh = calque.jit(double), calque.jit(lambda t: t * 3)
compiled, on_cpu = (torch.compile(double, backend="calque") for _ in range(2))
layer = torch.nn.Linear(3, 3, device="jax")
step = calque.jit(lambda: layer.weight.data.mul_(2).sum())
x, host = torch.ones(3, device="jax"), torch.ones(3)
for _ in range(4):  # so that every cache is full
    jitted(x), compiled(x), on_cpu(host), x + 1, step()
calls = [
    lambda: jitted(x), lambda: fresh(x), lambda: compiled(x), lambda: on_cpu(host), step,
    lambda: x + 1, lambda: calque.to_jax(x).sum(), lambda: x.tolist(), lambda: x[0].item(),
    lambda: torch.ones(2, device="jax"), lambda: calque.to_torch(calque.to_jax(x)),
]
pid = os.fork()
if pid == 0:
    refused = 0
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            refused += "spawn" in str(error)
    os._exit(100 + refused)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 100 + len(calls)
assert jitted(x).tolist() == [2, 2, 2]
"""

QUEUES = """
import time, warnings
import torch, calque
import torch.multiprocessing as multiprocessing
warnings.simplefilter("ignore")

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return torch.full((2,), float(i), device="jax"), i

def echo(received, sent, first):
    sent.put(first)
    for _ in range(2):
        sent.put(received.get())
    sent.close(); sent.join_thread()

if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Rows(), 2, num_workers=1, multiprocessing_context="fork")
    assert [x.tolist() for x, _ in loader] == [[[0, 0], [1, 1]], [[2, 2], [3, 3]]]
    context = multiprocessing.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    x = torch.arange(6.0, device="jax")
    process = context.Process(target=echo, args=(there, back, x))
    process.start()
    there.put({"x": x, "column": x.view(2, 3)[:, 1], "none": x[:0], "half": x.bfloat16()})
    there.put(torch.nn.Parameter(x))
    assert back.get(timeout=100).tolist() == x.tolist()
    found = back.get(timeout=100)
    assert all(t.device.type == "jax" for t in found.values())
    assert found["half"].dtype == torch.bfloat16 and found["none"].shape == (0,)
    found["x"][1] = 9.0
    assert found["column"].tolist() == [9, 4] and x[1] == 1
    parameter = back.get(timeout=100)
    assert type(parameter) is torch.nn.Parameter and parameter.requires_grad
    process.join()
    there.put(x.requires_grad_() * 2)
    try:
        there.get(timeout=100)
    except RuntimeError as error:
        assert "Cowardly refusing" in str(error)
    else:
        raise SystemExit("an impossible tensor came through")
    forking = multiprocessing.get_context("fork")
    queue = forking.Queue()
    child = forking.Process(target=lambda: (queue.put(x), time.sleep(1)))
    child.start()
    try:
        queue.get(timeout=100)
    except RuntimeError as error:
        assert "could not send" in str(error) and "spawn" in str(error)
    else:
        raise SystemExit("a forked child sent a tensor")
    child.join()
"""

POOLS = """
import multiprocessing, warnings
import torch, calque
warnings.simplefilter("ignore")
double, same, shape = (lambda x: x * 2), (lambda x: x), (lambda x: x.shape)

def try_to(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return str(error)

def work(name, value):
    if name == "fail":
        raise ValueError(value)
    return try_to(globals()[name], value) if name == "double" else globals()[name](value)

x = torch.nn.Parameter(torch.ones(3, 2, device="jax").half())
with multiprocessing.get_context("fork").Pool(1) as pool:
    def answer(*arguments):
        return try_to(pool.apply_async(work, arguments).get, 60)
    assert answer("shape", x.detach().t()) == (2, 3)
    assert "spawn" in answer("double", x)
    said = answer("same", x)
    assert "shape=(3, 2)" in said and "spawn" in said
    assert "spawn" in answer("fail", x)
    assert answer("double", 2) == 4
"""


def run(program: str | Path) -> None:
    done = new_process.run(program)
    assert done.returncode == 0, done.stderr[-3000:]


def test_calque_leaves_jax_and_torch_alone_and_a_forked_child_does_not_hang() -> None:
    run(ALONE + FORKED)


@pytest.mark.conformance
def test_compiled_functions_refuse_to_run_in_a_forked_child() -> None:
    run(COMPILED_AND_FORKED)


def test_tensors_travel_between_processes_or_say_why_not(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(QUEUES)  # a spawned process imports it
    run(tmp_path / "program.py")


def test_the_workers_of_a_forked_pool_say_why_a_tensor_cannot_be_used() -> None:
    run(POOLS)


@pytest.mark.conformance
def test_torch_compile_works_on_the_cpu_and_around_the_device() -> None:
    run(COMPILED)
