"""Federated learning on handwritten digits: FedAvg, FedProx and SCAFFOLD on clients that differ.

    python examples/federated_digits.py [--rounds 100] [--output demo_output]

The 1797 digits of scikit-learn are spread over 100 clients, so that most clients see few of the ten
digits. Twenty clients take part in a round. The model is a plain PyTorch module, and a round is one
XLA program.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from calque.federated import learning

CLIENTS, PARTICIPANTS, TEST = 100, 20, 297


def load(concentration: float) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """The examples of each client, and those that nobody trains on."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[:TEST], order[TEST:]
    parts = learning.dirichlet(y[train], CLIENTS, concentration)
    clients = [{"x": x[train[part]], "y": y[train[part]]} for part in parts]
    return clients, {"x": x[test], "y": y[test]}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def curve(
    process: learning.IterativeProcess, rounds: int, concentration: float
) -> learning.History:
    """The metrics of all rounds, among them the accuracy on the test examples."""
    clients, test = load(concentration)
    evaluation = learning.Evaluation(make_model())
    _, history = learning.run(
        process,
        clients,
        rounds,
        participants=PARTICIPANTS,
        evaluate=lambda state: evaluation(state, [test]),
        every=1,
    )
    return history


def curves(rounds: int, concentration: float) -> dict[str, learning.History]:
    """The metrics of all rounds, by the name of the algorithm."""
    common = {"batch_size": 10, "epochs": 5}
    model = make_model()
    processes = {
        "FedAvg": learning.fed_avg(model, client_optimizer=0.1, **common),
        "FedProx": learning.fed_prox(model, proximal=1.0, client_optimizer=0.1, **common),
        "SCAFFOLD": learning.scaffold(model, clients=CLIENTS, client_learning_rate=0.1, **common),
    }
    return {name: curve(process, rounds, concentration) for name, process in processes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--concentration", type=float, default=0.1)
    parser.add_argument("--output", type=Path, default=Path("demo_output"))
    options = parser.parse_args()
    torch.set_num_threads(1)

    found = curves(options.rounds, options.concentration)
    for name, history in found.items():
        values = [row["test_accuracy"] for row in history]
        last = np.mean(values[-10:])
        print(f"{name:9} {values[-1]:.3f} after {len(values)} rounds, {last:.3f} over the last ten")
    learning.plot_curves(found, options.output / "federated_digits.png")
    print(f"curves: {options.output / 'federated_digits.png'}")


if __name__ == "__main__":
    main()
