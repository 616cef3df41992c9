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
from calque.federated import learning

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


def torch_round(model: nn.Module, x: np.ndarray, y: np.ndarray) -> Callable[[], Any]:
    """As anyone would write it: one client after the other, eagerly."""
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    xs, ys = torch.tensor(x), torch.tensor(y).long()

    def step() -> dict[str, torch.Tensor]:
        mean = {name: torch.zeros_like(p) for name, p in start.items()}
        for features, labels in zip(xs, ys, strict=True):
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            for first in range(0, EXAMPLES, BATCH):
                batch = slice(first, first + BATCH)
                optimizer.zero_grad()
                F.cross_entropy(model(features[batch]), labels[batch]).backward()
                optimizer.step()
            for name, p in model.named_parameters():
                mean[name] += p.detach() / len(xs)
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
        made["torch"] = lambda: by_torch()["0.weight"]
    return made


def temporaries(clients: int, chunk: int) -> int:
    """Bytes that a round needs beside its arguments and results."""
    x, y = examples(clients)
    staged = learning.stage([{"x": a, "y": b} for a, b in zip(x, y, strict=True)])
    process = learning.fed_avg(module(), client_optimizer=RATE, batch_size=BATCH, chunk=chunk)
    lowered = process.lower(process.initialize(), staged)
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
    sizes = (10, 100) if quick else (100, 1000, 2000)
    memory = [
        [f"{clients} clients", *(f"{temporaries(clients, chunk) / 2**20:.1f}" for chunk in (1, 10))]
        for clients in sizes
    ]
    common.table("Temporaries of a round, MiB", ["", "chunks of 1", "chunks of 10"], memory)


if __name__ == "__main__":
    main()
