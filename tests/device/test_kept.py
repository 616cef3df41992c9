"""Compiled programs of eager calls are kept up to a bound, those used last."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import jax
import pytest
import torch

import calque  # noqa: F401  (registers the device)
from calque.device.runtime import compile_cache


def programs() -> int:
    """How many programs XLA holds in this process."""
    return len(jax.local_devices()[0].client.live_executables())


@pytest.fixture
def bound() -> Iterator[Callable[[int], None]]:
    before = torch.jax.get_max_programs()
    yield torch.jax.set_max_programs
    torch.jax.set_max_programs(before)


CALLS = {
    "pointwise": lambda x: x + 1,
    "reduction": lambda x: x.sum(),
    "of a view": lambda x: x[1:] * 2,
    "in place": lambda x: x.mul_(2),
    "into a view": lambda x: x[1:].copy_(x[:1] + 1),
    "another dtype": lambda x: x.double(),
    "made": lambda x: torch.ones(x.shape, device="jax"),
    "there and back": lambda x: x.cpu().to("jax"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_new_shapes_do_not_pile_up(call, bound) -> None:
    bound(8)
    x = torch.arange(3.0, device="jax")
    for _ in range(4):
        call(x)
    before = programs()
    for size in range(5, 19):
        x = torch.arange(float(size)).to("jax")
        for _ in range(4):
            found = call(x.clone())
    assert found.device.type == "jax"
    assert compile_cache.count() <= 8
    assert programs() <= before + 10


def test_what_is_used_all_the_time_stays(bound) -> None:
    bound(16)
    x = torch.ones(3, 5, device="jax")
    for _ in range(4):
        x.cos()
    compiled: list[str] = []

    def listen(event: str, *_: object, **__: object) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for size in range(5, 35):
            torch.ones(size).to("jax").sin()
            before = len(compiled)
            x.cos()
            assert len(compiled) == before
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled


def test_results_are_the_same_when_everything_is_compiled_again(bound) -> None:
    bound(1)
    x, y = torch.arange(6.0).to("jax"), torch.arange(4.0).to("jax")
    for _ in range(5):
        assert (x[1:] * 2).tolist() == [2, 4, 6, 8, 10]
        assert (y * 2 + 1).tolist() == [1, 3, 5, 7]
        x[2:] += 1
        x[2:] -= 1
    with pytest.raises(ValueError, match="at least 1 program"):
        bound(0)
    with pytest.raises(TypeError, match="a number of programs, not str 'x'"):
        bound("x")


def test_a_bound_that_is_too_low_is_told(bound, caplog) -> None:
    bound(4)
    with caplog.at_level("WARNING", logger="calque.kept"):
        for _ in range(6):
            for size in range(2, 9):
                torch.ones(size).to("jax").tan()
    assert "set_max_programs" in caplog.text


def test_of_a_thousand_shapes_the_last_are_kept_and_those_in_use(bound) -> None:
    bound(64)
    table = compile_cache.Table()
    always = table.keep("always", None)
    for size in range(1000):
        always.used = True
        table.keep(size, None)
    assert "always" in table and 999 in table and 0 not in table
    assert 32 <= compile_cache.count() <= 64


def test_what_was_just_compiled_is_there_when_it_is_used(bound) -> None:
    bound(64)
    table = compile_cache.Table()
    for size in range(200):
        for other, entry in table.items():
            entry.used = other < size - 4
        table.keep(size, None)
        assert set(range(max(0, size - 3), size + 1)) <= table.keys()
    assert compile_cache.count() <= 64


MANY = """
import torch, calque
torch.set_num_threads(1)
torch.jax.set_max_programs(32)

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096 / 2**20

jitted = calque.jit(lambda x: x * 2, max_programs=8)
for size in range(1, 161):
    x = torch.zeros(size).to("jax")
    x.add_(1)
    if size % 10 == 0:
        jitted(x)
    if size == 60:
        before = resident()
print(resident() - before, len(jitted.programs))
"""


@pytest.mark.conformance
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_shapes() -> None:
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    grown, programs = map(float, done.stdout.split())
    assert grown < 75, "100 shapes, of 2 to 3 MB each"
    assert programs == 8
