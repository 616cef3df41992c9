"""Loops that are interrupted at random moments; run as a program, it prints what it counted.

    python -m tests.faults.counting jit signal 200 compile exception 100

"sharded" is a jitted step of tensors that are spread over all devices, and "meshes" one of tensors
of which every second is on the first device only.

Every step adds 1 to each of the tensors of a state. After an interrupt they are all equal, and as
many as the steps that were seen to end, or one more.
"""

import ctypes
import json
import random
import signal
import sys
import threading
import time

import jax
import torch

import calque
from calque import sharding

WIDTH = 24
LONGEST = 0.008  # seconds from the start of a loop to its interrupt
PATIENCE = 2.0  # seconds after which an interrupt counts as lost


class Late(Exception):
    """What another thread sets in the main thread."""


def made(door):
    """A step, with the tensors that it counts in."""
    state = [torch.zeros(4, device="jax") for _ in range(WIDTH)]
    model = torch.nn.Linear(4, 4).to("jax")
    if door in ("sharded", "meshes"):
        sharding.mesh(dp=jax.device_count())
        state = [sharding.shard(tensor, sharding.P("dp")) for tensor in state]
        model = sharding.shard_module(model, {"*": sharding.along("dp")})
    if door == "meshes":
        first = sharding.mesh(one=1, devices=jax.devices()[:1])
        state[::2] = [sharding.shard(tensor, sharding.P(), first) for tensor in state[::2]]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def train(x):
        for tensor in state:
            tensor.add_(1)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def counted(x):
        for tensor in state:
            tensor.add_(1)
        return x + 1

    step = torch.compile(counted, backend="calque") if door == "compile" else calque.jit(train)
    for _ in range(2):
        step(torch.ones(2, 4, device="jax"))
    return step, state, model


def by_signal(delay):
    """Have a signal come after a delay."""
    signal.setitimer(signal.ITIMER_REAL, delay)


def by_exception(delay):
    """Have another thread set an exception in this one after a delay."""
    me = ctypes.c_ulong(threading.get_ident())

    def late():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(me, ctypes.py_object(Late))

    threading.Timer(delay, late).start()


def count(door, how, trials):
    interrupt = by_exception if how == "exception" else by_signal
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    draw = random.Random(0)
    step, state, model = made(door)
    x = torch.ones(2, 4, device="jax")
    raised = 0
    for _ in range(trials):
        steps = round(state[0][0].item())
        torch.set_grad_enabled(True)  # an interrupted optimizer step leaves it off
        end = time.monotonic() + PATIENCE
        try:
            interrupt(draw.uniform(0.0002, LONGEST))
            while time.monotonic() < end:
                step(x)
                steps += 1
        except (KeyboardInterrupt, Late):
            raised += 1
        values = {calque.to_jax(tensor).tolist()[0] for tensor in state}
        assert values in ({float(steps)}, {float(steps + 1)}), (steps, values)
        assert all(bool(p.isfinite().all()) for p in model.parameters())
    return raised


def main(arguments):
    rounds = zip(arguments[::3], arguments[1::3], map(int, arguments[2::3]), strict=True)
    print(json.dumps([count(*one) for one in rounds]))


if __name__ == "__main__":
    main(sys.argv[1:])
