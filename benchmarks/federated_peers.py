"""The round of `benchmarks.federated` in DrJAX and Flower, each in an environment of its own.

    python -m benchmarks.federated_peers [--quick]

Where a package cannot be installed, it says so. Each is measured against the hand-written scan in
the same process. Flower is measured twice: its strategy FedAvg and its messages around a loop of
PyTorch in this process, and its own simulation, which runs clients in processes of Ray (as many as
there are cores).
"""

from benchmarks import one_core  # noqa: F401  (first)

# isort: split
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from benchmarks import common, peers
from benchmarks.federated import candidates, examples, module, trained, trained_by_torch
from benchmarks.flower_simulation import simulation

PEERS = {"drjax": "drjax", "flwr": "flwr[simulation]", "flwr_simulation": "flwr[simulation]"}


def drjax_round(clients: int) -> Callable[[], Any]:
    """All clients at once, mapped and averaged by DrJAX."""
    drjax: Any = importlib.import_module("drjax")
    x, y = map(jnp.asarray, examples(clients))
    layers = [layer for layer in module() if isinstance(layer, torch.nn.Linear)]
    params = [
        (jnp.asarray(layer.weight.detach().numpy()), jnp.asarray(layer.bias.detach().numpy()))
        for layer in layers
    ]

    @jax.jit
    @drjax.program(partition_size=clients)
    def round_(params: Any, x: Any, y: Any) -> Any:
        sent = drjax.broadcast(params)
        return drjax.reduce_mean(drjax.map_fn(trained, (sent, x, y)))

    return lambda: np.asarray(jax.block_until_ready(round_(params, x, y))[0][0])


def flwr_round(clients: int) -> Callable[[], Any]:
    """One client after the other by PyTorch, through Flower's messages and its FedAvg."""
    flwr: Any = importlib.import_module("flwr.common")
    strategies: Any = importlib.import_module("flwr.server.strategy")
    x, y = examples(clients)
    xs, ys = torch.tensor(x), torch.tensor(y).long()
    model = module()
    start = [p.detach().numpy().copy() for p in model.parameters()]
    strategy = strategies.FedAvg()
    ok = flwr.Status(flwr.Code.OK, "")

    def step() -> Any:
        sent = flwr.ndarrays_to_parameters(start)
        results = []
        for features, labels in zip(xs, ys, strict=True):
            new = trained_by_torch(model, flwr.parameters_to_ndarrays(sent), features, labels)
            results.append(
                (None, flwr.FitRes(ok, flwr.ndarrays_to_parameters(new), len(labels), {}))
            )
        joined, _ = strategy.aggregate_fit(1, results, [])
        return flwr.parameters_to_ndarrays(joined)[0]

    return step


def measure(name: str, clients: int, rounds: int) -> dict[str, float]:
    """Seconds of a round, by the peer and by hand; both give the same model."""
    if name == "flwr_simulation":
        by_hand = candidates(clients, chunks=())["scan"]
        seconds, first = simulation(clients, rounds)
        np.testing.assert_allclose(first, by_hand(), rtol=1e-4, atol=1e-5)
        return {name: seconds} | common.interleave({"scan": by_hand}, rounds=rounds, calls=1)
    peer = {"drjax": drjax_round, "flwr": flwr_round}[name](clients)
    by_hand = candidates(clients, chunks=())["scan"]
    np.testing.assert_allclose(peer(), by_hand(), rtol=1e-4, atol=1e-5)
    return common.interleave({name: peer, "scan": by_hand}, rounds=rounds, calls=1)


def main() -> None:
    if len(sys.argv) == 4:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
        return
    quick = common.quick(__doc__)
    rows = []
    for name in PEERS:
        try:
            python = peers.environment(PEERS[name])
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"{name} is left out, for it cannot be installed: {error}")
            continue
        for clients in (10,) if quick else (100,):
            rounds = "3" if quick else "7"
            try:
                printed = peers.run(
                    python, "benchmarks.federated_peers", name, str(clients), rounds
                )
            except RuntimeError as error:
                print(f"{name} is left out, for it fails: {error}")
                continue
            times = json.loads(printed)
            ratio = f"{times[name] / times['scan']:.2f}"
            rows.append([f"{clients} clients, {name}", common.milliseconds(times[name]), ratio])
    common.table("A round of FedAvg by others", ["", "ms", "of hand-written scan"], rows)


if __name__ == "__main__":
    main()
