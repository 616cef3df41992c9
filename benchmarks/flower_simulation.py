"""A round of FedAvg in Flower's simulation, whose clients run in processes of Ray.

Those find this module by its name, so it is no script.
"""

import functools
import importlib
import statistics
import time
from itertools import pairwise
from typing import Any

import torch

from benchmarks.federated import examples, module, trained_by_torch


def simulation(clients: int, rounds: int) -> tuple[float, Any]:
    """Seconds of a round (the median) in Flower's simulation, and the first weight after one."""
    client: Any = importlib.import_module("flwr.client")
    common_: Any = importlib.import_module("flwr.common")
    server: Any = importlib.import_module("flwr.server")
    strategies: Any = importlib.import_module("flwr.server.strategy")
    simulated: Any = importlib.import_module("flwr.simulation")
    start = [p.detach().numpy().copy() for p in module().parameters()]
    ends: list[float] = []
    firsts: list[Any] = []

    class Client(client.NumPyClient):
        def __init__(self, number: int) -> None:
            self._number = number

        def fit(self, parameters: Any, config: Any) -> Any:
            x, y = _kept_examples(clients)
            model, at = module(), self._number
            return trained_by_torch(model, parameters, x[at], y[at]), len(y[at]), {}

    class Timed(strategies.FedAvg):
        def configure_fit(self, *args: Any, **kwargs: Any) -> Any:
            if not ends:
                ends.append(time.perf_counter())
            return super().configure_fit(*args, **kwargs)

        def aggregate_fit(self, *args: Any, **kwargs: Any) -> Any:
            joined = super().aggregate_fit(*args, **kwargs)
            firsts.append(common_.parameters_to_ndarrays(joined[0])[0])
            ends.append(time.perf_counter())
            return joined

    def parts(context: Any) -> Any:
        strategy = Timed(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=clients,
            min_available_clients=clients,
            initial_parameters=common_.ndarrays_to_parameters(start),
        )
        config = server.ServerConfig(num_rounds=rounds)
        return server.ServerAppComponents(strategy=strategy, config=config)

    def make(context: Any) -> Any:
        return Client(int(context.node_config["partition-id"])).to_client()

    simulated.run_simulation(
        server_app=server.ServerApp(server_fn=parts),
        client_app=client.ClientApp(client_fn=make),
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    took = [b - a for a, b in pairwise(ends)][1:]  # the first round starts the processes
    return statistics.median(took), firsts[0]


@functools.cache
def _kept_examples(clients: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.set_num_threads(1)
    x, y = examples(clients)
    return torch.tensor(x), torch.tensor(y).long()
