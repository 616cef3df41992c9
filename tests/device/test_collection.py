"""Finalizers that use JAX while the collector runs leave the process whole."""

import os
import sys

import pytest

from tests import new_process
from tests.devices import devices

PROGRAM = """
import gc
import jax, jax.numpy as jnp
import calque

f = jax.jit(lambda t: t + 1)
t = jnp.ones(3)

class Cycle:
    def __init__(self):
        self.self = self

    def __del__(self):
        if active:
            one(t)

def one(t):
    return two(t)

def two(t):
    return three(t)

def three(t):
    return (t * 2).sum() + f(t)[0]

active = True
one(t)
for i in range(400):
    gc.set_threshold(3 + i % 23)  # so that any allocation may be the one that collects
    Cycle(), Cycle()
    a = jnp.asarray(float(i))
    c = a + jax.device_put(a) + f(t)
active = False
print("whole")
"""


def test_finalizers_that_use_jax_do_not_end_the_process() -> None:
    done = new_process.run(PROGRAM)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


SWITCH = """
import gc
import threading
import jax
import numpy as np
import calque
from calque.upstream.jax_internals import extension

for enabled in (True, False):
    extension.set_tracebacks_enabled(enabled)
    gc.collect()
    assert extension.tracebacks_enabled() is enabled

mesh = jax.sharding.Mesh(np.array(jax.devices()), "d")
spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
begun, over, idle = threading.Event(), threading.Event(), threading.Event()

def works():
    begun.set()
    while not over.is_set():
        pass

waiting = threading.Thread(target=idle.wait)
working = threading.Thread(target=works)
extension.set_tracebacks_enabled(True)
waiting.start()
gc.collect()
assert extension.tracebacks_enabled()
working.start()
begun.wait()
gc.collect()
assert not extension.tracebacks_enabled()  # the thread may be in JAX
made = jax.device_put(np.arange(4.0), spread)
over.set()
working.join()
gc.collect()
assert np.asarray(made).tolist() == [0, 1, 2, 3]  # with tracebacks it could not be read any more
idle.set()
waiting.join()
print("as they were")
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="tracebacks are never turned off there")
def test_tracebacks_are_as_they_were_unless_another_thread_may_be_in_jax() -> None:
    # Run in a process without pytest's threads.
    done = new_process.run(SWITCH, env=os.environ | devices(4))
    assert (done.returncode, done.stdout) == (0, "as they were\n"), done.stderr
