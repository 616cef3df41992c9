"""A process that was forked after the device was used ends as any other."""

from tests import new_process

LEAVES = """
import os, signal, torch, calque

x = torch.ones(3, device="jax")
calque.jit(lambda x: x * 2)(x)  # starts the threads that a compiler of XLA has
for status in (0, 3):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        torch.ones(2) + 1
        raise SystemExit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status
assert (x + 1).tolist() == [2, 2, 2]
"""


def test_a_forked_process_that_exits_neither_hangs_nor_aborts():
    new_process.check(LEAVES, filter="ignore")
