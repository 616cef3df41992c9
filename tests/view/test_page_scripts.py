"""What the scripts of the page compute, without a browser."""

import json
import shutil
import subprocess
from importlib.resources import files

import pytest
import torch
from torch import Tensor, nn

import calque
from calque.view.writers.html import _data

_UNTIL = "function nodeColour"  # the drawing code starts here


def script(view: calque.view.View, expression: str) -> object:
    """The value of an expression of JavaScript's in the page."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed")
    assets = files("calque.view").joinpath("assets")
    data = json.dumps(json.dumps(_data(view.graph, None, view.overlays)))
    parts = [f"const document = {{getElementById: () => ({{textContent: {data}}})}};"]
    parts += [assets.joinpath(f"{name}.js").read_text() for name in ("data", "state")]
    parts += [assets.joinpath("colours.js").read_text().partition(_UNTIL)[0]]
    parts += [f"console.log(JSON.stringify(({expression})));"]
    made = subprocess.run([node, "-e", "\n".join(parts)], capture_output=True, text=True)
    assert not made.returncode, made.stderr
    return json.loads(made.stdout)


class NamedAsMembersOfObjects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.constructor, self.plain = nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.plain(self.constructor(x))


def test_a_node_without_a_number_has_none_whatever_its_name() -> None:
    graph = calque.trace(NamedAsMembersOfObjects(), torch.ones(2))
    view = calque.show(graph, overlays={"own": {"plain": 2.0}})
    rows = 'state.colour = "overlay:own", nodes.map(node => [node.id, amount(node)])'
    assert script(view, rows) == [
        ["x", None],
        ["constructor", None],
        ["plain", 2],
        ["output", None],
    ]
