"""`torch.accelerator` and `torch.jax` answer what programs ask of them."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import calque
from tests import new_process


def test_memory_is_told():
    before = torch.accelerator.memory_allocated()
    kept = torch.ones(1000, device="jax")
    assert torch.accelerator.memory_allocated() == before + kept.nbytes
    stats = torch.accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] >= kept.nbytes
    assert torch.accelerator.max_memory_allocated() >= kept.nbytes
    assert stats["allocated_bytes.all.peak"] >= stats["allocated_bytes.all.current"]
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free <= total


def test_a_peak_begins_anew():
    large = torch.ones(50_000_000, device="jax") + 1
    assert large.sum() == 1e8
    with_it = torch.accelerator.max_memory_allocated()
    del large
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() < with_it


def test_bfloat16_is_supported():
    assert torch.jax.is_bf16_supported()


@pytest.mark.filterwarnings("ignore")
def test_a_jitted_call_is_a_row_of_the_profiler():
    @calque.jit
    def doubled(x):
        return x * 2

    x = torch.ones(3, device="jax")
    doubled(x)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        doubled(x)
    assert any("calque.jit: " in row.key and "doubled" in row.key for row in found.key_averages())


@pytest.mark.filterwarnings("ignore")
def test_compile_without_a_backend_takes_ours_for_the_device_alone(monkeypatch):
    asked = []

    def compile_fx(graph, inputs, **_):
        asked.append(graph)
        return graph

    # PyTorch's generates C++, whose compilation takes ten seconds.
    inductor = SimpleNamespace(compile_fx=compile_fx, get_patched_config_dict=dict)
    monkeypatch.setitem(sys.modules, "torch._inductor.compile_fx", inductor)
    model = torch.nn.Linear(3, 2).to("jax")
    x = torch.ones(4, 3, device="jax")
    torch.testing.assert_close(torch.compile(model)(x), model(x))
    assert not asked
    torch.testing.assert_close(torch.compile(lambda x: x * 2)(torch.ones(2)), torch.full((2,), 2.0))
    assert len(asked) == 1


@pytest.mark.conformance
@pytest.mark.filterwarnings("ignore")
def test_inductor_compiles_what_is_on_the_cpu():
    torch.testing.assert_close(torch.compile(lambda x: x * 3)(torch.ones(2)), torch.full((2,), 3.0))


def test_data_parallel_is_its_module():
    model = torch.nn.Linear(3, 2).to("jax")
    x = torch.ones(4, 3, device="jax")
    torch.testing.assert_close(torch.nn.DataParallel(model)(x), model(x))


def test_a_loaders_workers_are_no_warning():
    program = """
import warnings
import torch, calque
from torch.utils.data import DataLoader

warnings.simplefilter("error", RuntimeWarning)
assert (torch.ones(2, device="jax") + 1).tolist() == [2, 2]
rows = [batch.tolist() for batch in DataLoader(torch.arange(4.0), 2, num_workers=1)]
assert rows == [[0, 1], [2, 3]], rows
"""
    done = new_process.run(program)
    assert done.returncode == 0, done.stderr
    assert "fork" not in done.stderr
