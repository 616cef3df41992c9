"""The backend is found by several threads that look for it at once, and for the first time."""

import importlib

import pytest
import torch

from calque.device.runtime.imports import when_imported
from tests import new_process

PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
import torch

sys.setswitchinterval(1e-5)
together = Barrier(4)

def compiled(number):
    together.wait()
    return torch.compile(lambda x: x + number, backend="calque")(torch.ones(2)).tolist()

with ThreadPoolExecutor(4) as threads:
    assert list(threads.map(compiled, range(4))) == [[1.0 + n] * 2 for n in range(4)]

from torch._dynamo.backends import registry
try:
    registry.register_backend(lambda graph, inputs: graph, name="calque")
except AssertionError as error:
    assert "duplicate name" in str(error)
else:
    raise SystemExit("another backend of the name was taken")
assert registry.register_backend(name="other")(compiled) is compiled
"""


@pytest.mark.parametrize("first", ["", "import calque\n"])
def test_threads_that_ask_for_the_backend_at_once_all_get_it(first):
    done = new_process.run(first + PROGRAM)
    assert done.returncode == 0, done.stderr


def test_several_may_wait_for_the_import_of_one_module(tmp_path, monkeypatch):
    (tmp_path / "waited_for.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for number in range(2):
        when_imported("waited_for", lambda module, number=number: found.append(number))
    importlib.import_module("waited_for")
    assert found == [0, 1]


def test_what_calque_runs_for_pytorch_is_not_compiled_after_a_graph_break(capsys):
    layer, graphs = torch.nn.Linear(2, 2), []

    def fn(x):
        torch._dynamo.graph_break()
        print(x)
        layer.double()
        torch._dynamo.graph_break()
        return x + 1

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    assert torch.compile(fn, backend=keep)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert "tensor([1., 1.])" in capsys.readouterr().out and layer.weight.dtype == torch.float64
    assert len(graphs) == 1
