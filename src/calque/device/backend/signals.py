"""Wraps Python's signal handlers in `interrupts.Handler`, transparently to the program.

In Python, a signal can be deferred only by its handler, so every handler is wrapped: those set
before calque is imported, and those that `signal.signal` sets later. `getsignal` and
`signal.signal` return the user's own handlers, by identity: asyncio cancels on Ctrl-C only if it
finds `default_int_handler`. The module `signal` looks up its C functions at each call, so they are
replaced there, which also affects a `signal.signal` imported before calque.
"""

import _signal  # pyright: ignore[reportMissingImports]
import ctypes
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import jax
import torch
from torch import overrides
from torch.autograd import grad_mode
from torch.utils.weak import WeakIdKeyDictionary

from calque.device.runtime import held_functions, interrupts
from calque.device.runtime.imports import when_imported
from calque.device.runtime.interrupts import Handler
from calque.errors.handlers import settles
from calque.upstream.jax_internals import config, core, source_info_util
from calque.upstream.torch_internals import (
    SymNode,
    python_dispatch,
    reparametrize_module,
)


def _called_by_numpy(kind: type) -> Iterator[Callable[..., Any]]:
    """Yields the functions that NumPy calls on a type object that represents a dtype."""
    for name in ("__hash__", "__eq__", "__numpy_dtype__"):
        method = vars(kind).get(name)
        method = method.fget if isinstance(method, property) else method
        if isinstance(method, FunctionType):
            yield method


def _of_a_context(value: object) -> Iterator[Callable[..., Any]]:
    """Yields the functions that enter and leave a context: a class's two methods, or a generator
    function.
    """
    if isinstance(value, type) and {"__enter__", "__exit__"} <= vars(value).keys():
        methods = (vars(value)["__enter__"], vars(value)["__exit__"])
        yield from (method for method in methods if isinstance(method, FunctionType))
    elif (made_by := getattr(value, "__wrapped__", None)) is not None:
        if inspect.isgeneratorfunction(made_by):
            yield made_by


STEPS: tuple[Callable[..., Any], ...] = (
    # PyTorch's C++ reads the kind of a symbolic number in noexcept code.
    SymNode.is_int,
    SymNode.is_float,
    SymNode.is_bool,
    # It replaces members of a module for one call (`torch.func.functional_call`).
    inspect.unwrap(reparametrize_module),
    # Exceptions in callbacks of weak references are dropped, so an interrupt would be lost.
    *(kind()._remove for kind in (WeakKeyDictionary, WeakValueDictionary, WeakSet)),
    WeakIdKeyDictionary()._remove,
    # So are exceptions while NumPy converts one of JAX's dtypes.
    *_called_by_numpy(type(jax.numpy.float32)),
    # Contexts of JAX and PyTorch must restore their state: a leftover trace or mode breaks
    # everything that follows.
    *(
        method
        for module in (config, core, source_info_util, grad_mode, overrides, python_dispatch)
        for value in vars(module).values()
        for method in _of_a_context(value)
    ),
)
"""Functions of other packages that need marking; ours are marked where they are defined, except for
those of `calque.tracing`.
"""

_TRACING: dict[str, Callable[[Any], tuple[Callable[..., Any], ...]]] = {
    # PyTorch's C++ calls Python for a FakeTensor's device in noexcept code.
    "calque.tracing.abstract.abstract_values": lambda module: (
        module.AbstractValues.of,
        module.AbstractValues.of_member,
        module.AbstractValues.compute,
    ),
    # These restore what a trace or a recording has changed.
    "calque.tracing.core.patching": lambda module: (module.Patches.hold,),
    "calque.tracing.symbolic.watching": lambda module: (
        module.StateWatch.restore,
        module.StateWatch.forget,
    ),
}
"""Functions of `calque.tracing`, by their module; they are marked once it is imported."""

_SIGACTION_BYTES = 1024  # larger than any system's struct
_set = _signal.signal
_get = _signal.getsignal


def _does_nothing() -> tuple[bytes, ...]:
    """Returns the bytecode of empty functions, with and without a docstring."""

    def bare() -> None:
        pass

    def documented() -> None:
        """Nothing."""

    return bare.__code__.co_code, documented.__code__.co_code


_NOTHING = _does_nothing()


def _wrapped(signum: int, handler: object) -> Any:
    """Returns the wrapped handler, which defers signals if necessary.

    SIG_IGN, SIG_DFL and values that are not handlers are returned unchanged, and so are functions
    without a body. Event loops set the latter to have signals written to their file descriptor
    (`signal.set_wakeup_fd`), and deferring a signal would write it again.
    """
    if isinstance(handler, Handler) or not callable(handler):
        return handler
    if getattr(getattr(handler, "__code__", None), "co_code", None) in _NOTHING:
        return handler
    return Handler(signum, handler)


def _own(handler: object) -> Any:
    """Returns the handler that the user set."""
    return handler.handler if isinstance(handler, Handler) else handler


@functools.wraps(_set)
def _set_wrapped(signalnum: int, handler: object, /) -> Any:
    return _own(_set(signalnum, _wrapped(signalnum, handler)))


@functools.wraps(_get)
def _get_own(signalnum: int, /) -> Any:
    return _own(_get(signalnum))


def _wrap_present() -> None:
    """Wrap the handlers that are set; only the main thread may do so."""
    for signum in _signal.valid_signals():
        present = _get(signum)
        wrapped = _wrapped(signum, present)
        if wrapped is not present:
            _exchange(signum, wrapped)


def _exchange(signum: int, handler: Handler) -> None:
    """Set a handler without changing the process's disposition of the signal.

    `signal.signal` would undo `signal.siginterrupt(signum, False)`, and replace C handlers that are
    chained in front of Python's (`faulthandler.register(signum, chain=True)`).
    """
    if os.name != "posix":
        _set(signum, handler)
        return
    sigaction: Callable[..., int] = ctypes.CDLL(None).sigaction
    disposition = ctypes.create_string_buffer(_SIGACTION_BYTES)
    known = sigaction(int(signum), None, disposition) == 0
    _set(signum, handler)
    if known:
        sigaction(int(signum), disposition, None)


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
def _in_main_thread(_: object) -> int:
    _wrap_present()
    return 0


def _mark(steps: tuple[Callable[..., Any], ...]) -> None:
    for step in steps:
        settles(step)


def install() -> None:
    """Wrap the handlers of signals, those that are set and those set later.

    Outside the main thread, the handlers that are set are wrapped when the main thread runs next.
    """
    held_functions.be_ready()
    interrupts.asks(torch.ops.prim.device.default, torch.ops.prim.layout.default)
    _mark(STEPS)
    for name, steps in _TRACING.items():
        when_imported(name, lambda module, steps=steps: _mark(steps(module)))
    _signal.signal = _set_wrapped
    _signal.getsignal = _get_own
    if threading.current_thread() is threading.main_thread():
        _wrap_present()
    else:
        ctypes.pythonapi.Py_AddPendingCall(_in_main_thread, None)
