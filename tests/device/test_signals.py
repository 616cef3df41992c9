"""Programs see the signals' handlers that they set, also where calque stands before them."""

import _signal
import asyncio
import os
import signal
import threading
import time

import pytest

import calque  # noqa: F401  (wraps the handlers)
from calque.device.backend.signals import _get as wrapped
from calque.device.runtime.interrupts import Handler
from calque.errors.handlers import settles
from tests import new_process

SIGNAL = signal.SIGUSR2
pytestmark = pytest.mark.skipif(
    _signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
    reason="begun in the background, where a shell has interrupts ignored",
)


@pytest.fixture(autouse=True)
def _restored():
    before = signal.getsignal(SIGNAL)
    yield
    signal.signal(SIGNAL, before)


@settles
def send_while_settling() -> None:
    os.kill(os.getpid(), SIGNAL)
    for number in range(20):
        str(number)


def test_getsignal_and_signal_give_the_users_own_handler():
    def first(signum, frame):
        raise NotImplementedError

    class Second:
        def __call__(self, signum, frame):
            raise NotImplementedError

    second = Second()
    signal.signal(SIGNAL, first)
    assert signal.getsignal(SIGNAL) is first is _signal.getsignal(SIGNAL)
    assert signal.signal(SIGNAL, second) is first
    assert signal.signal(SIGNAL, signal.SIG_IGN) is second
    assert signal.signal(SIGNAL, signal.SIG_DFL) is signal.SIG_IGN
    assert signal.getsignal(SIGNAL) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handler_of_ctrl_c_is_wrapped_by_the_import():
    assert isinstance(wrapped(signal.SIGINT), Handler)


def test_signals_that_are_ignored_or_left_to_the_system_are_left_alone():
    for action in (signal.SIG_IGN, signal.SIG_DFL):
        signal.signal(SIGNAL, action)
        assert wrapped(SIGNAL) == action


def test_errors_are_those_of_python():
    with pytest.raises(TypeError, match=r"signal\.SIG_IGN, signal\.SIG_DFL, or a callable"):
        signal.signal(SIGNAL, "handler")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="out of range"):
        signal.signal(1000, print)
    with pytest.raises(OSError, match="Invalid argument"):
        signal.signal(signal.SIGKILL, print)
    errors = []

    def elsewhere():
        try:
            signal.signal(SIGNAL, print)
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert errors and "main thread" in errors[0]


def test_a_handler_set_in_a_handler_is_the_one_that_runs():
    calls = []

    def second(signum, frame):
        calls.append(2)

    def first(signum, frame):
        calls.append(1)
        assert signal.signal(signum, second) is first

    signal.signal(SIGNAL, first)
    for _ in range(2):
        send_while_settling()
        calls.copy()  # the interpreter checks for signals after a call
    assert calls == [1, 2]


def test_asyncio_is_cancelled_by_ctrl_c_and_calls_its_handlers_once():
    seen = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(SIGNAL, seen.append, "handler")
        send_while_settling()
        await asyncio.sleep(0.01)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert seen == ["handler", "cancelled"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_interrupts_a_sleep_at_once():
    signal.signal(SIGNAL, signal.default_int_handler)
    thread = threading.Timer(0.05, os.kill, (os.getpid(), SIGNAL))
    thread.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(30)
    assert time.monotonic() - began < 15
    thread.join()


def test_the_file_descriptor_of_wakeups_gets_the_signal():
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(SIGNAL, lambda signum, frame: None)
    before = signal.set_wakeup_fd(write)
    try:
        send_while_settling()
        assert os.read(read, 100) == bytes([SIGNAL])
    finally:
        signal.set_wakeup_fd(before)
        os.close(read)
        os.close(write)


BEFORE = """
import ctypes, faulthandler, os, signal, tempfile, threading
from signal import getsignal, signal as set_handler

def disposition(signum):
    buffer = ctypes.create_string_buffer(1024)
    ctypes.CDLL(None).sigaction(int(signum), None, buffer)
    return buffer.raw[:16] + buffer.raw[136:140]  # the function, the mask and the flags

set_handler(signal.SIGTERM, handler := lambda signum, frame: print("handled", signum))
set_handler(signal.SIGUSR1, signal.default_int_handler)
signal.siginterrupt(signal.SIGTERM, False)
dumped = tempfile.TemporaryFile()
faulthandler.register(signal.SIGUSR1, dumped, chain=True)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)
before = [disposition(number) for number in numbers]
"""
AFTER = """
from calque.device.runtime.interrupts import Handler
from calque.device.backend.signals import _get
for number in numbers:
    assert isinstance(_get(number), Handler) == (number != signal.SIGHUP), number
assert [disposition(number) for number in numbers] == before
assert getsignal(signal.SIGTERM) is handler
assert set_handler(signal.SIGTERM, signal.default_int_handler) is handler
assert isinstance(_get(signal.SIGTERM), Handler)
try:
    signal.raise_signal(signal.SIGUSR1)
    raise AssertionError("not interrupted")
except KeyboardInterrupt:
    pass
dumped.seek(0)
assert b"Current thread" in dumped.read()
"""
IMPORTS = {
    "in the main thread": "import calque",
    "in another": """
def load():
    import calque
thread = threading.Thread(target=load)
thread.start()
thread.join()
""",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("where", IMPORTS)
def test_handlers_from_before_the_import_are_wrapped_and_nothing_else_changes(where):
    program = BEFORE + IMPORTS[where] + AFTER
    done = new_process.run(program)
    assert done.returncode == 0, done.stderr[-2000:]
