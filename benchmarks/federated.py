"""A round of FedAvg against hand-written JAX and a plain PyTorch loop, in one process.

    python -m benchmarks.federated [--quick]

An MLP 784-200-200-10, 100 examples on each client, batches of 20, plain gradient descent. `scan` is
one client after the other with a running weighted sum, written by hand; `vmap` is all clients at
once. Memory is XLA's own account of what a round needs beside its arguments.
"""

from benchmarks import one_core  # noqa: F401  (first)

# isort: split
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks import common
from calque import federated
from calque.federated import learning
from calque.federated.learning.models import Model
from calque.federated.learning.state import RoundInfo
from calque.federated.learning.training import Batches, train

EXAMPLES, BATCH, RATE = 100, 20, 0.1


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


def examples(clients: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients, EXAMPLES, 784)).astype(np.float32)
    return x, rng.integers(0, 10, (clients, EXAMPLES)).astype(np.int32)


def trained_by_torch(
    model: nn.Module, start: list[np.ndarray], x: torch.Tensor, y: torch.Tensor
) -> list[np.ndarray]:
    """What a client has after its steps."""
    with torch.no_grad():
        for p, value in zip(model.parameters(), start, strict=True):
            p.copy_(torch.from_numpy(value))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for first in range(0, EXAMPLES, BATCH):
        batch = slice(first, first + BATCH)
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    return [p.detach().numpy().copy() for p in model.parameters()]


def torch_round(model: nn.Module, x: np.ndarray, y: np.ndarray) -> Callable[[], Any]:
    """As anyone would write it: one client after the other, eagerly."""
    start = [p.detach().numpy().copy() for p in model.parameters()]
    xs, ys = torch.tensor(x), torch.tensor(y).long()

    def step() -> list[np.ndarray]:
        mean = [np.zeros_like(p) for p in start]
        for features, labels in zip(xs, ys, strict=True):
            for total, new in zip(
                mean, trained_by_torch(model, start, features, labels), strict=True
            ):
                total += new / len(xs)
        return mean

    return step


def jax_loss(params: list[Any], x: Any, y: Any) -> Any:
    hidden = x
    for weight, bias in params[:-1]:
        hidden = jax.nn.relu(hidden @ weight.T + bias)
    weight, bias = params[-1]
    scores = jax.nn.log_softmax(hidden @ weight.T + bias)
    return -jnp.take_along_axis(scores, y[:, None], 1).mean()


def trained(params: Any, x: Any, y: Any) -> Any:
    def step(params: Any, batch: Any) -> tuple[Any, None]:
        gradients = jax.grad(jax_loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradients), None

    batches = (x.reshape(-1, BATCH, 784), y.reshape(-1, BATCH))
    return jax.lax.scan(step, params, batches)[0]


@jax.jit
def jax_scan(params: Any, x: Any, y: Any) -> Any:
    def client(total: Any, data: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, trained(params, *data)), None

    zero = jax.tree.map(jnp.zeros_like, params)
    total, _ = jax.lax.scan(client, zero, (x, y))
    return jax.tree.map(lambda t: t / x.shape[0], total)


@jax.jit
def jax_vmap(params: Any, x: Any, y: Any) -> Any:
    new = jax.vmap(trained, (None, 0, 0))(params, x, y)
    return jax.tree.map(lambda leaf: leaf.mean(0), new)


def candidates(clients: int, chunks: tuple[int, ...] = (1, 10)) -> dict[str, Callable[[], Any]]:
    """Rounds that all compute the same; each gives the new first weight."""
    x, y = examples(clients)
    model = module()
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    params = [
        (jnp.asarray(layer.weight.detach().numpy()), jnp.asarray(layer.bias.detach().numpy()))
        for layer in layers
    ]
    arrays = jnp.asarray(x), jnp.asarray(y)
    made: dict[str, Callable[[], Any]] = {
        "scan": lambda: jax.block_until_ready(jax_scan(params, *arrays))[0][0],
        "vmap": lambda: jax.block_until_ready(jax_vmap(params, *arrays))[0][0],
    }
    staged = learning.stage([{"x": a, "y": b} for a, b in zip(x, y, strict=True)])
    for chunk in chunks:
        process = learning.fed_avg(model, client_optimizer=RATE, batch_size=BATCH, chunk=chunk)
        state = process.initialize()

        def step(process: Any = process, state: Any = state) -> Any:
            return jax.block_until_ready(process.next(state, staged)[0].parameters)["0.weight"]

        made[f"calque, chunks of {chunk}"] = step
    if clients <= 100:
        by_torch = torch_round(model, x, y)
        made["torch"] = lambda: by_torch()[0]
    return made


def _masked_client(params: Any, x: Any, y: Any, length: Any) -> Any:
    """All batches up to the most that a client has; those behind a client's own change nothing."""

    def step(params: Any, batch: Any) -> tuple[Any, None]:
        start, x, y = batch
        counts = start + jnp.arange(BATCH) < length

        def loss(params: Any) -> Any:
            losses = jax.vmap(lambda a, b: jax_loss(params, a[None], b[None]))(x, y)
            return jnp.where(counts, losses, 0).sum() / jnp.maximum(counts.sum(), 1)

        gradients = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradients), None

    starts = jnp.arange(0, x.shape[0], BATCH)
    batches = (starts, x.reshape(-1, BATCH, 784), y.reshape(-1, BATCH))
    return jax.lax.scan(step, params, batches)[0]


@jax.jit
def jax_masked(params: Any, x: Any, y: Any, lengths: Any) -> Any:
    """Chunks of ten clients, of any sizes, each padded to the longest of all."""

    def chunk(total: Any, data: Any) -> tuple[Any, None]:
        new = jax.vmap(_masked_client, (None, 0, 0, 0))(params, *data)
        weight = data[2].astype(jnp.float32)
        return jax.tree.map(lambda t, n: t + jnp.tensordot(weight, n, 1), total, new), None

    zero = jax.tree.map(jnp.zeros_like, params)
    chunks = jax.tree.map(lambda a: a.reshape(-1, 10, *a.shape[1:]), (x, y, lengths))
    total, _ = jax.lax.scan(chunk, zero, chunks)
    return jax.tree.map(lambda t: t / lengths.sum(), total)


def of_different_sizes(clients: int) -> dict[str, Callable[[], Any]]:
    """Rounds of clients of 2 to 400 examples, most of them with few."""
    rng = np.random.default_rng(0)
    counts = np.clip(np.exp(rng.normal(3.5, 1.0, clients)).astype(int), 2, 400)
    data = [
        {
            "x": rng.normal(size=(n, 784)).astype(np.float32),
            "y": rng.integers(0, 10, n).astype(np.int32),
        }
        for n in counts
    ]
    model = module()
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    params = [
        (jnp.asarray(layer.weight.detach().numpy()), jnp.asarray(layer.bias.detach().numpy()))
        for layer in layers
    ]
    staged = learning.stage(data)
    missing = -staged.elements["x"].shape[1] % BATCH
    x = jnp.pad(staged.elements["x"], ((0, 0), (0, missing), (0, 0)))
    y = jnp.pad(staged.elements["y"], ((0, 0), (0, missing)))
    made: dict[str, Callable[[], Any]] = {
        "hand-written, chunks of 10": lambda: jax.block_until_ready(
            jax_masked(params, x, y, staged.length)
        )[0][0]
    }
    for chunk in (1, 10):
        process = learning.fed_avg(model, client_optimizer=RATE, batch_size=BATCH, chunk=chunk)
        state = process.initialize()

        def step(process: Any = process, state: Any = state) -> Any:
            return jax.block_until_ready(process.next(state, staged)[0].parameters)["0.weight"]

        made[f"calque, chunks of {chunk}"] = step
    return made


def temporaries(clients: int, chunk: int) -> int:
    """Bytes that a round needs beside its arguments and results; nothing is computed."""
    held = federated.to_type({"x": (np.float32, [EXAMPLES, 784]), "y": (np.int32, [EXAMPLES])})
    model = Model(module())
    parameters = federated.to_type(model.parameters)

    @federated.local(parameters, held, framework="jax")
    def work(parameters: Any, data: Any) -> Any:
        whole = federated.Sequence(data, jnp.int32(EXAMPLES))
        key = jax.random.key_data(jax.random.key(0))
        batches = Batches(BATCH)
        given = RoundInfo(key, BATCH)
        return train(model, parameters, {}, whole, given, learning.sgd(RATE), batches).parameters

    @federated.computation(federated.at_server(parameters), federated.at_clients(held))
    def round_(parameters: Any, data: Any) -> Any:
        sent = federated.federated_broadcast(parameters)
        return federated.federated_mean(federated.federated_map(work, (sent, data)))

    lowered = round_.configured(clients=clients, chunk=chunk).lower()
    return lowered.compile().memory_analysis().temp_size_in_bytes


def main() -> None:
    quick = common.quick(__doc__)
    rows = []
    for clients in (100,) if quick else (100, 1000):
        made = candidates(clients)
        times = common.interleave(made, rounds=3 if quick else 7, calls=1)
        for name, seconds in times.items():
            ratio = f"{seconds / times['scan']:.2f}"
            rows.append([f"{clients} clients, {name}", common.milliseconds(seconds), ratio])
    common.table("A round of FedAvg", ["", "ms", "of hand-written scan"], rows)
    made = of_different_sizes(20 if quick else 100)
    times = common.interleave(made, rounds=3 if quick else 7, calls=1)
    first = times["hand-written, chunks of 10"]
    rows = [[n, common.milliseconds(s), f"{s / first:.2f}"] for n, s in times.items()]
    common.table("Clients of different sizes", ["", "ms", "of hand-written"], rows)
    sizes = (10, 100) if quick else (1_000, 10_000)
    memory = []
    for clients in sizes:
        found = [temporaries(clients, chunk) / 2**20 for chunk in (1, 10)]
        data = clients * EXAMPLES * 785 * 4 / 2**20
        memory.append([f"{clients} clients", f"{data:.0f}", *(f"{one:.1f}" for one in found)])
    heading = ["", "the data", "chunks of 1", "chunks of 10"]
    common.table("Temporaries of a round beside the data, MiB", heading, memory)


if __name__ == "__main__":
    main()
