"""Federated learning on handwritten digits: FedAvg, FedProx and SCAFFOLD on clients that differ.

    python examples/federated_digits.py [--rounds 100] [--output demo_output]

The 1797 digits of scikit-learn are spread over 100 clients, so that most clients see few of the ten
digits. Twenty clients take part in a round. The model is a plain PyTorch module, and a round is one
XLA program.
"""

import argparse
from pathlib import Path

import jax
import matplotlib
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from tqdm import tqdm

from calque.federated import learning

matplotlib.use("Agg")
from matplotlib import pyplot as plt

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


def accuracies(name: str, process: learning.IterativeProcess, options: argparse.Namespace) -> list:
    """The accuracy on the test examples after each round."""
    clients, test = load(options.concentration)
    staged = learning.stage(clients)
    evaluate = learning.Evaluation(make_model())
    state, found = process.initialize(), []
    for number in tqdm(range(options.rounds), desc=name, leave=False):
        chosen = learning.sample_clients(CLIENTS, PARTICIPANTS, round=number)
        data = jax.tree.map(lambda leaf, rows=chosen: leaf[rows], staged)
        state, _ = process.next(state, data, clients=chosen)
        found.append(float(evaluate(state, [test])["accuracy"]))
    return found


def plot(curves: dict[str, list[float]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(7, 4))
    for name, values in curves.items():
        axes.plot(range(1, len(values) + 1), values, label=name)
    axes.set(xlabel="round", ylabel="accuracy on test digits", ylim=(0, 1))
    axes.set_title(f"{PARTICIPANTS} of {CLIENTS} clients in a round")
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--concentration", type=float, default=0.1)
    parser.add_argument("--output", type=Path, default=Path("demo_output"))
    options = parser.parse_args()
    torch.set_num_threads(1)

    common = {"batch_size": 10, "epochs": 5}
    model = make_model()
    processes = {
        "FedAvg": learning.fed_avg(model, client_optimizer=0.1, **common),
        "FedProx": learning.fed_prox(model, proximal=1.0, client_optimizer=0.1, **common),
        "SCAFFOLD": learning.scaffold(model, clients=CLIENTS, client_learning_rate=0.1, **common),
    }
    curves = {name: accuracies(name, process, options) for name, process in processes.items()}
    for name, values in curves.items():
        last = np.mean(values[-10:])
        print(f"{name:9} {values[-1]:.3f} after {len(values)} rounds, {last:.3f} over the last ten")
    plot(curves, options.output / "federated_digits.png")
    print(f"curves: {options.output / 'federated_digits.png'}")


if __name__ == "__main__":
    main()
