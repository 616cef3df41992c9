"""Memory that stays in the process: page faults are counted, in a process of its own."""

import sys

import pytest

from tests import new_process

PROGRAM = """
import resource, warnings
warnings.simplefilter("error")
import calque, torch
if {kept}:
    calque.keep_host_memory()
    calque.keep_host_memory()

@calque.jit
def step(x):  # has a temporary of 64 MB
    return ((x @ x.T).cos() @ x).sum()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def size():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

x = torch.ones(4096, 16, device="jax")
for _ in range(20):
    step(x).item()
before = faults()
for _ in range(20):
    step(x).item()
touched, full = faults() - before, size()
torch.accelerator.empty_cache()
print(touched, full - size())
"""
WARNED = """
import warnings, calque, torch
(torch.ones(3, device="jax") + 1).tolist()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    calque.keep_host_memory()
print([(w.category.__name__, w.filename) for w in caught])
"""
GLIBC = pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")


@GLIBC
def test_kept_memory_is_not_asked_for_again_and_can_be_returned() -> None:
    results = []
    for kept in (False, True):
        made = new_process.run(PROGRAM.format(kept=kept))
        assert made.returncode == 0, made.stderr[-3000:]
        results.append(tuple(map(int, made.stdout.split())))
    (usual, _), (touched, returned) = results
    assert usual > 20 * 16_000 and touched < usual / 4
    assert returned > 48 << 20


@GLIBC
def test_a_call_after_the_first_computation_warns_at_the_users_line() -> None:
    made = new_process.run(WARNED)
    assert made.stdout.strip() == "[('RuntimeWarning', '<string>')]", made.stderr[-3000:]


def test_another_c_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from calque.device.runtime import host_memory

    monkeypatch.setattr(host_memory, "_has_glibc", lambda: False)
    with pytest.raises(RuntimeError, match="needs glibc"):
        host_memory.keep_host_memory()
