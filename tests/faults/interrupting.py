"""Interrupts at random moments, in a process of their own.

A test calls `in_process` with the name of a function here or in its own module; the function calls
`interrupt`. What is tested for would end the process, so what comes back is a return code.
"""

import ctypes
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from tests import new_process


@dataclass
class Count:
    """What became of interrupts.

    Attributes:
        raised: those that arrived as themselves.
        swallowed: those that arrived nowhere, since somebody dropped the exception.
        errors: those that arrived as another exception, by its text.
    """

    raised: int = 0
    swallowed: int = 0
    errors: list[str] = field(default_factory=list)


class Interrupt(BaseException):
    """What the interrupts here raise; its own class, so that nothing else is counted."""


class BySignal:
    """Sends SIGALRM, whose handler raises.

    Attributes:
        sent: whether it has.
    """

    def __init__(self) -> None:
        self.sent = False
        signal.signal(signal.SIGALRM, self.handle)

    def handle(self, signum: int, frame: object) -> None:
        self.sent = True
        raise Interrupt

    def start(self, after: float) -> None:
        self.sent = False
        signal.setitimer(signal.ITIMER_REAL, after)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


class ByThread:
    """Has another thread set an exception, which arrives at the next instruction.

    Attributes:
        sent: whether it has.
    """

    def __init__(self) -> None:
        self.sent = False
        self.target = ctypes.c_ulong(threading.get_ident())
        self.timer = threading.Timer(0, self.send)

    def send(self) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self.target, ctypes.py_object(Interrupt))
        self.sent = True

    def start(self, after: float) -> None:
        self.sent = False
        self.timer = threading.Timer(after, self.send)
        self.timer.start()

    def stop(self) -> None:
        """Wait for what is under way, so that it is raised here and not later.

        It is not taken back: `PyThreadState_SetAsyncExc(thread, None)` leaves CPython 3.11 looking
        for an exception that is not there.
        """
        self.timer.cancel()
        if self.timer.ident is not None:
            self.timer.join()


def interrupt(
    step: Callable[[], object],
    check: Callable[[], object],
    times: int,
    sender: BySignal | ByThread,
    longest: float = 0.005,
    seed: int = 0,
) -> Count:
    """Interrupt a loop over `step` so many times, and `check` the state after each.

    Grad mode is set again before each: an interrupt in `optimizer.step()` may leave it off, on
    every device.
    """
    moments = random.Random(seed)
    count = Count()
    for _ in range(times):
        torch.set_grad_enabled(True)
        after = moments.uniform(0.0001, longest)
        try:
            try:
                sender.start(after)
                while not sender.sent:
                    step()
                count.swallowed += 1
            finally:
                sender.stop()
        except Interrupt:
            count.raised += 1
        except Exception as error:
            count.errors.append(f"{type(error).__name__}: {error}")
        sender.stop()  # the first may have been interrupted itself
        torch.set_grad_enabled(True)
        check()
    return count


def in_process(module: str, call: str) -> str:
    """Run a call of a function of a module in a new process; gives what it printed.

    Raises:
        AssertionError: it did not end well.
    """
    enabled = "import faulthandler; faulthandler.enable()"
    done = new_process.run(f"{enabled}; import {module} as module; module.{call}", timeout=3600)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
