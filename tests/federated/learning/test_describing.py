"""What is the same in the words for two runs, and what is not."""

import functools
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from calque.federated import learning
from calque.federated.learning.describing import described, described_module

BEFORE = """
import argparse, dataclasses, functools, jax, optax, numpy as np, torch
from torch.nn import functional as F

SCALE = 0.5
WEIGHTS = torch.tensor([1.0, 2.0, 3.0])
OPTIONS = {"scale": 0.5, "rounds": 10}

def helper(losses):
    return losses * SCALE

def loss(output, y, *, power=2):
    '''Doc.'''
    return helper(F.cross_entropy(output, y, WEIGHTS, reduction="none")) ** power

def by_options(output, y):
    return F.cross_entropy(output, y, reduction="none") * OPTIONS["scale"]

def closed(scale):
    return lambda output, y: F.mse_loss(output, y, reduction="none").mean(1) * scale

def of_arguments(arguments):
    return lambda output, y: F.cross_entropy(output, y, reduction="none") * arguments.scale

@dataclasses.dataclass
class Config:
    scale: float = 0.5
    rounds: int = 10

class Loss:
    def __init__(self, scale):
        self.scale, self.name = scale, "run 1"

    def __call__(self, output, y):
        return self.scaled(F.cross_entropy(output, y, reduction="none"))

    def scaled(self, losses):
        return losses * self.scale if "a" in {"a", "b", "c"} else losses

class Net(torch.nn.Linear):
    factor = 1.0

    def __init__(self, scale=0.5):
        super().__init__(4, 3)
        self.scale = scale

    def forward(self, x):
        return self.scaled(super().forward(x))

    def scaled(self, x):
        return x * self.scale * self.factor

    def unused(self):
        return 1

NAMED = {
    "loss": loss,
    "options": by_options,
    "closed": closed(0.5),
    "arguments": of_arguments(argparse.Namespace(scale=0.5, rounds=10)),
    "config": of_arguments(Config()),
    "object": Loss(0.5),
    "method": Loss(0.5).scaled,
    "partial": functools.partial(loss, power=3),
    "weighted": torch.nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0]), reduction="none"),
    "smooth": torch.nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none"),
    "optax": optax.chain(optax.clip(1.0), optax.adam(optax.cosine_decay_schedule(0.1, 10))),
    "jitted": jax.jit(closed(0.5)),
}
"""


def named(text: str) -> dict[str, str]:
    scope = types.ModuleType("described_program")
    sys.modules["described_program"] = scope
    exec(compile(text, "described_program.py", "exec"), vars(scope))
    del sys.modules["described_program"]
    found = {name: described(value) for name, value in scope.NAMED.items()}
    return {**found, "module": described_module(scope.Net())}


@pytest.fixture(scope="module")
def before() -> dict[str, str]:
    pytest.importorskip("optax")
    return named(BEFORE)


@pytest.mark.parametrize(
    ("old", "new", "differ"),
    [
        ("'''Doc.'''", "'''Other.'''", ""),
        ("\n\ndef helper", "\n\n# A comment.\n\n\ndef helper", ""),
        ("helper(losses):\n    return losses", "helper(values):\n    return values", ""),
        ('"rounds": 10', '"rounds": 20', ""),
        ("rounds=10)", "rounds=20)", ""),
        ("rounds: int = 10", "rounds: int = 20", ""),
        ('"run 1"', '"run 2"', ""),
        ("        return 1\n", "        return 2\n", ""),
        ('"a", "b", "c"', '"c", "a", "b"', ""),
        ("SCALE = 0.5", "SCALE = 0.6", "loss partial"),
        ("losses * SCALE", "losses + SCALE", "loss partial"),
        ("power=2", "power=4", "loss partial"),
        ("[1.0, 2.0, 3.0])\nOPTIONS", "[1.0, 2.0, 4.0])\nOPTIONS", "loss partial"),
        ('{"scale": 0.5', '{"scale": 0.6', "options"),
        ("closed(0.5)", "closed(0.6)", "closed jitted"),
        (".mean(1) * scale", ".sum(1) * scale", "closed jitted"),
        ("(scale=0.5, rounds", "(scale=0.6, rounds", "arguments"),
        ("scale: float = 0.5", "scale: float = 0.6", "config"),
        ("Loss(0.5)", "Loss(0.6)", "object method"),
        ('"a", "b", "c"', '"b", "c"', "object method"),
        ("losses * self.scale", "losses / self.scale", "object method"),
        ("power=3", "power=5", "partial"),
        ("3.0]), reduction", "4.0]), reduction", "weighted"),
        ("label_smoothing=0.1", "label_smoothing=0.2", "smooth"),
        ("optax.clip(1.0)", "optax.clip(2.0)", "optax"),
        ("schedule(0.1, 10)", "schedule(0.1, 20)", "optax"),
        ("scale=0.5):", "scale=0.6):", "module"),
        ("x * self.scale", "x + self.scale", "module"),
        ("factor = 1.0", "factor = 2.0", "module"),
    ],
)
def test_what_changes_the_numbers_changes_the_words(
    before: dict[str, str], old: str, new: str, differ: str
) -> None:
    assert old in BEFORE
    after = named(BEFORE.replace(old, new))
    assert {name for name in before if before[name] != after[name]} == set(differ.split())


def test_another_process_finds_the_same_words(before: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "described_program.py"
    program.write_text(
        f"{BEFORE}\nfrom calque.federated.learning.describing import described, described_module\n"
        "found = {name: described(value) for name, value in NAMED.items()}\n"
        "print({**found, 'module': described_module(Net())})\n"
    )
    out = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=True
    ).stdout
    assert eval(out) == before


def test_long_values_and_cycles_are_told_apart() -> None:
    long = [float(n) for n in range(1000)]
    assert described(long) != described([*long[:-1], 0.0])
    assert described(np.arange(1000)) != described(np.arange(1000)[::-1].copy())
    assert described(torch.ones(3)) != described(torch.ones(3, dtype=torch.float64))
    cycle: list[Any] = [1]
    cycle.append(cycle)
    assert described(cycle) == "[1, list]"
    assert described(functools.partial(max, 1)) != described(functools.partial(max, 2))


def test_a_run_with_another_loss_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    data = [{"x": np.eye(4, dtype=np.float32), "y": np.arange(4) % 3}] * 2

    def run(loss: Any, rounds: int) -> Any:
        module = torch.nn.Linear(4, 3)  # initialized anew, as in a new process
        process = learning.fed_avg(module, loss, batch_size=4)
        with learning.Checkpoints(tmp_path) as checkpoints:
            return learning.run(process, data, rounds, checkpoints=checkpoints, progress=False)

    def scaled(scale: float) -> Any:
        return lambda output, y: scale * F.cross_entropy(output, y, reduction="none")

    run(scaled(1.0), 1)
    assert len(run(scaled(1.0), 2)[1]) == 1
    for other in (
        scaled(2.0),
        lambda output, y: F.cross_entropy(output, y, reduction="none"),
        None,
    ):
        with pytest.raises(ValueError, match="loss differ"):
            run(other, 3)
