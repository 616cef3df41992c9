"""Backward passes in PyTorch's engine: exceptions in hooks, and late registration of the device.

When a hook raises, PyTorch's engine unwinds with the Python exception still set, and meanwhile
calls the device's guard, which is Python, for the device's type. CPython treats any call that
returns with an exception set as failed, and C++ would end the process. So the guard clears the
exception, or the handler of a signal that arrives then does (`held_functions`). The backward
pass, which now fails without a reason, raises it again.

The engine creates a thread for each device at the first backward pass of the process. If that was
before the device was registered, the device has no thread, and backward passes run in the calling
thread. They do so too while a function is traced, because the trace belongs to that thread, and in
transforms such as `torch.func.grad`, whose operators a recording sees only in its own thread.
"""

import functools
import threading
from typing import Any

import torch

from calque.device.backend.derivative_formulas import by_masks
from calque.device.backend.placed_gradients import run_placing
from calque.device.memory.cell import active
from calque.device.runtime.held_functions import NOTHING, taken
from calque.device.runtime.placement import spread
from calque.upstream import torch_c, torch_internals
from calque.upstream.jax_internals import backends_are_initialized

_KIND = torch_c.autograd.DeviceType.PrivateUse1
_NO_THREAD = "device_ready_queues_"  # part of the engine's error message


def device_type() -> Any:
    """Returns the type of the device, and stores an exception that is already set."""
    try:
        # At the end of a loop, the interpreter checks for an exception that C code has set.
        for _ in NOTHING:
            pass
    except BaseException as error:
        taken[:] = [error]
    return _KIND


def install() -> None:
    """Make `backward` and `grad` raise the exceptions that the guard stored."""
    run = torch_internals.autograd_graph._engine_run_backward
    has_thread: bool | None = None

    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        nonlocal has_thread
        engine = run
        if spread.exists:
            engine = functools.partial(run_placing, run)
            args, kwargs = (args[0], args[1:], kwargs), {}
        # Otherwise no tensor is on the device.
        if has_thread is None and backends_are_initialized():
            has_thread = _has_thread(run)
        try:
            with by_masks():
                in_place = active.inlining or torch_c.functorch.peek_interpreter_stack() is not None
                if has_thread is not False and not in_place:
                    return engine(*args, **kwargs)
                with torch.autograd.set_multithreading_enabled(False):
                    return engine(*args, **kwargs)
        except BaseException as error:
            if not taken:
                raise
            first = taken.pop()
            if not isinstance(error, SystemError):  # an interrupt that came later
                if error is not first and error.__context__ is None:
                    error.__context__ = first
                raise
        raise first

    for module in (torch.autograd.graph, torch.autograd):
        module._engine_run_backward = run_backward  # type: ignore[attr-defined]


def _has_thread(run: Any) -> bool:
    """Returns True if the engine has a thread for the device, which only a backward pass can
    show.
    """
    errors: list[RuntimeError] = []

    def look() -> None:
        leaf = torch.zeros(1, device="jax", requires_grad=True)
        root = leaf.view(1)
        try:
            run((root,), (root.detach(),), False, False, (leaf,), False, accumulate_grad=False)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=look)  # a thread without the caller's modes and trace
    thread.start()
    thread.join()
    return not any(_NO_THREAD in str(error) for error in errors)
