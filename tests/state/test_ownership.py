"""The engine is calque and a few packages, not what stands beside or within others."""

import os
from pathlib import Path

import networkx
import pytest
import torch

import calque
from calque.state.ownership import Owner, owner_of_file
from tests import new_process

HOME = Path(calque.__file__).parent


@pytest.mark.parametrize(
    ("file", "engine"),
    [
        (HOME / "jitting/api.py", True),
        (HOME.with_name("calque_cli") / "as_cuda.py", True),
        (HOME.with_name("calque_tools") / "train.py", False),
        (HOME.with_name("mine") / "train.py", False),
        ("/env/lib/python3.11/site-packages/jax/numpy/linalg.py", True),
        ("/env/lib/python3.11/site-packages/mine/torch/train.py", False),
        ("/home/me/numpy/.venv/lib/python3.11/site-packages/mine/train.py", False),
    ],
)
def test_only_the_packages_themselves_are_the_engine(file, engine):
    assert (owner_of_file(str(file)) is Owner.ENGINE) == engine


def test_the_state_of_a_package_in_the_same_folder_is_compared(tmp_path):
    packages = tmp_path / "lib" / "site-packages"
    packages.mkdir(parents=True)
    for name in ("calque", "calque_cli"):
        (packages / name).symlink_to(HOME.with_name(name))
    (packages / "scaling.py").write_text(
        "class Scaler:\n    scale = 1.0\n    def __call__(self, x): return x * self.scale\n"
    )
    new_process.check(
        f"""
import sys
sys.path.insert(0, {str(packages)!r})
import torch, calque, scaling
assert calque.__file__.startswith({str(packages)!r})
scaler, x = scaling.Scaler(), torch.ones(1, device="jax")
scaled = calque.jit(lambda x: scaler(x))
assert scaled(x).item() == scaled(x).item() == 1
scaler.scale = 5.0
assert scaled(x).item() == 5
""",
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        cwd=tmp_path,
    )


def test_a_graph_of_networkx_that_the_program_holds_is_compared():
    graph = networkx.DiGraph(scale=2.0)
    graph.add_edge(0, 1, weight=3.0)
    weighted = calque.jit(lambda x: x * graph[0][1]["weight"] * graph.graph["scale"])
    x = torch.ones((), device="jax")
    assert [weighted(x).item() for _ in range(6)] == [6.0] * 6
    assert len(weighted.history) <= 2, weighted.history
    graph[0][1]["weight"] = 5.0
    assert weighted(x).item() == 10.0
    graph.graph["scale"] = 1.0
    assert weighted(x).item() == 5.0
