"""Defers interrupts that would break something.

Python runs a signal's handler in the main thread between any two instructions, and wherever C code
calls `PyErr_CheckSignals`; the handler may raise. In seven kinds of places that must not be:

- In PyTorch's device guard. Its C++ is `noexcept` and calls a Python method for the device's type,
  but before that, pybind11 calls `str()` on a name, which checks for signals. An exception there
  ends the process. While C++ uses the method, it has one more reference, which is the test. This
  also happens while C++ unwinds from an error in Python, which is then still set
  (`held_functions`).
- In Python code that `noexcept` C++ calls for the properties of a tensor, such as the `device` from
  a mode or a tensor subclass (`asks`).
- In a step that has donated its inputs and not yet stored its results (`settles`).
- While code of calque, PyTorch or JAX enters or leaves a context: its state would be restored late,
  when the traceback is freed, or never.
- In callbacks of the garbage collector, weak references, dicts in C, and dynamo's guards: these
  drop exceptions, so the interrupt would be lost.
- In what a library imports while it is used (`torch.export` imports SymPy): half of a package would
  be there, and whatever needs it would fail from then on.
- At an instruction of a library that belongs to no line (a jump back to the top of a loop, in
  Python 3.11): IPython cannot show such a traceback, and a notebook would go on.

A handler that runs at such a moment makes its signal pending again, as if it had arrived later: at
once for a while, and then when the call that it waits for ends (`_Ended`).
"""

import functools
import gc
import inspect
import os
import sys
import threading
import time
from _signal import (  # pyright: ignore[reportMissingImports]
    getsignal,
    pthread_kill,
)
from _thread import interrupt_main, start_new_thread
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, ExitStack, _GeneratorContextManager
from operator import is_
from types import CodeType, FrameType
from typing import Any, TypeVar
from weakref import finalize, ref

import jax
import torch

from calque.device.runtime.held_functions import NOTHING, is_any_held, take
from calque.errors.handlers import SETTLING, run_apart
from calque.upstream.python_internals import entered_unseen, importer, is_calling
from calque.upstream.torch_internals import is_guard

_Function = TypeVar("_Function", bound=Callable[..., object])
_SOON = 0.001  # seconds
_AT_ONCE = 200
"""How many times in a row a signal is made pending again immediately, each in up to 0.1 ms."""
_NOTE = "calque: signals that wait"

_CALQUE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_LIBRARIES = (
    _CALQUE,
    *(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, jax.__file__)),
)
_CONTEXTS: frozenset[int] = frozenset(
    id(method.__code__)
    for method in (
        _GeneratorContextManager.__enter__,
        _GeneratorContextManager.__exit__,
        ExitStack.enter_context,
        ExitStack.__exit__,
    )
)
_FINALIZE = finalize.__call__.__code__
_COMPARING = frozenset(("__eq__", "__hash__"))

_FIRST = 3  # arguments to check: `self`, the queried operator, and its tensor

_waiting_contexts: set[int] = set()
_questions: set[int] = set()
_generated: dict[int, ref[CodeType]] = {}


def waits(function: _Function) -> _Function:
    """Mark functions that enter or leave a context of calque, and may wait for other threads.

    Args:
        function: the generator function of a context manager, or its `__enter__` or `__exit__`.
    """
    _waiting_contexts.add(id(function.__code__))  # type: ignore[attr-defined]
    return function


def settles_in(code: CodeType) -> None:
    """Like `settles`, for generated code that may be discarded again."""
    key = id(code)
    _generated[key] = ref(code, lambda _: _generated.pop(key, None))


def asks(*operators: object) -> None:
    """Mark operators that `noexcept` C++ code calls for a tensor's properties.

    A handler waits in the Python code that implements them: a mode, or a method of a tensor class.
    """
    _questions.update(map(id, operators))


def _has_to_wait(frame: FrameType | None) -> bool:
    """Returns True if a handler that interrupts this frame must wait."""
    if is_any_held():
        return True
    if frame is not None and frame.f_lineno is None and _is_of(frame, _LIBRARIES):
        return True
    return next(_waited_for(frame), None) is not None


def _waited_for(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields the frames on whose account a handler must wait, from the innermost outwards."""
    callbacks = {id(getattr(call, "__code__", None)) for call in gc.callbacks}
    waiting = SETTLING.keys() | _generated.keys() | callbacks
    within: int | None = None  # the code that the frame has called
    while frame is not None:
        if (
            id(frame.f_code) in waiting
            or _drops_exceptions(frame)
            or _is_called_by_c(frame)
            or _is_of(importer(frame), _LIBRARIES)
            or (within not in _waiting_contexts and _is_of_a_context(frame, waiting))
        ):
            yield frame
        within, frame = id(frame.f_code), frame.f_back


def _drops_exceptions(frame: FrameType) -> bool:
    """Returns True for code called by C code that drops or replaces exceptions."""
    code = frame.f_code
    if code is _FINALIZE:
        return frame.f_locals.get("_") is not None  # the callback of a weak reference
    if frame.f_back is not None and is_calling(frame.f_back, "fork"):
        return True  # a callback for forks
    if is_guard(code):
        return True
    # C++ compares the keys of JAX's caches.
    return code.co_name in _COMPARING and frame.f_globals.get("__name__", "").startswith("jax.")


def _is_called_by_c(frame: FrameType) -> bool:
    """Returns True for code called by C++ that cannot handle exceptions, or drops them."""
    code = frame.f_code
    is_library = code.co_filename.startswith(_LIBRARIES)
    if is_library and code.co_name == "__del__":
        return True
    if not is_library and code.co_name != "__torch_dispatch__":
        return False
    found = frame.f_locals
    given = tuple(found.get(name) for name in code.co_varnames[:_FIRST])
    # The callback of a weak reference gets the dead reference as its argument.
    if code.co_argcount < _FIRST and any(
        isinstance(each, ref) and each() is None for each in given
    ):
        return True
    if code.co_flags & inspect.CO_VARARGS:  # a wrapper of another function
        given = next((each for each in given if isinstance(each, tuple)), ())[:_FIRST]
    return any(id(each) in _questions for each in given)


def _is_of_a_context(frame: FrameType, waiting: AbstractSet[int]) -> bool:
    """Returns True if this frame enters or leaves a context of a library, or one marked as a step.

    Args:
        frame: the frame.
        waiting: the code for which handlers wait, by identity.
    """
    code, by = frame.f_code, frame.f_back
    if id(code) in _CONTEXTS:
        generator = getattr(frame.f_locals.get("self"), "gen", None)
        if id(getattr(generator, "gi_code", None)) in waiting:
            return True
        while by is not None and id(by.f_code) in _CONTEXTS:
            by = by.f_back
        return _is_of(by, _LIBRARIES)
    if code.co_name not in ("__enter__", "__exit__") or id(code) in _waiting_contexts:
        return False
    # A context of PyTorch counts only if a library enters it: a profiler's calls user code.
    return _is_of(frame, _CALQUE) or (_is_of(frame, _LIBRARIES) and _is_of(by, _LIBRARIES))


def _is_of(frame: FrameType | None, folders: str | tuple[str, ...]) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(folders)


def _make_pending_soon(handler: "Handler") -> None:
    """Send the signal to the main thread again, in case it is sleeping."""
    time.sleep(_SOON)
    if handler.late and isinstance(getsignal(handler.signum), Handler):  # not the default action
        [*map(pthread_kill, (threading.main_thread().ident,), (handler.signum,))]


class _Ended:
    """Makes a signal pending again when the call ends among whose variables it is.

    A loop may spend nearly all of its time in steps, so that a signal which is only sent again from
    time to time would rarely arrive between two of them.
    """

    def __init__(self, handler: "Handler") -> None:
        self._handler = handler

    def __del__(self) -> None:
        if self._handler.late:
            self._handler.times = 0
            [*map(interrupt_main, (self._handler.signum,))]  # no call, so that nothing comes here


class _Tracing(threading.local):
    """The context in which handlers run during a trace of this thread.

    Attributes:
        apart: creates a context in which nothing is traced; None if no trace is running.
    """

    apart: Callable[[], AbstractContextManager[object]] | None = None


tracing: _Tracing = _Tracing()


_deciding = False
"""Whether a handler is finding out if it has to wait.

The handlers of other signals, and of this one, come again after it. If each went to find out at
once, within the others, that would take longer than until a timer's next signal, and the stack
would overflow.
"""

_late: list[int] = []
"""The signals that are to be made pending again."""


class _Again:
    """Makes signals pending again when it is unpacked, in which no Python code runs."""

    __iter__: Any = staticmethod(functools.partial(map, interrupt_main, _late))


_again = _Again()


class Handler:
    """A signal handler that waits if necessary.

    Its `__call__` is a property that returns the function to call. So the interpreter itself calls
    the handler, and tracebacks contain no frames of this class.

    Attributes:
        handler: the user's handler.
        signum: the signal.
        times: how many times in a row it has been deferred immediately.
        late: whether it has been deferred, and is to come again.
    """

    __slots__ = ("handler", "late", "signum", "times")

    def __init__(self, signum: int, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.signum: int = signum
        self.times: int = 0
        self.late: bool = False
        self.handler: Callable[[int, FrameType | None], Any] = handler

    @property
    @entered_unseen
    def __call__(self) -> Callable[..., Any]:
        """Calls the user's handler, or does nothing."""
        global _deciding
        late = _late
        if _deciding:
            late += [self.signum]
            return is_
        _deciding = True
        try:
            try:
                for _ in NOTHING:  # at the end of a loop, the interpreter looks for such exceptions
                    pass
            except BaseException as error:
                if not take(error):
                    late += [self.signum]
                    raise
            return self._chosen(sys._getframe().f_back)
        finally:
            # In the very last act, and not by a call of this function: after a call the interpreter
            # looks for signals, and would be here again at once.
            _deciding = False
            _, late[:] = [*_again], ()

    def _chosen(self, frame: FrameType | None) -> Callable[..., Any]:
        """Returns what is to be called now.

        Args:
            frame: what is interrupted.
        """
        if not _has_to_wait(frame):
            self.times, self.late = 0, False
            if tracing.apart is None:
                return self.handler
            return functools.partial(run_apart, tracing.apart(), self.handler)
        self.times += 1
        self.late = True
        # Python 3.11 checks for signals again before it runs the first instruction of a function
        # that is being traced, so a signal that is pending at once would stop everything. And long
        # operations (a first call imports modules) would take a hundred times as long.
        is_slow = sys.gettrace() is not None or sys.getprofile() is not None
        is_long = (is_slow or self.times > _AT_ONCE) and self._comes_after(frame)
        if is_slow or is_long:
            start_new_thread(_make_pending_soon, (self,))
        else:
            _late.append(self.signum)
        return is_

    def _comes_after(self, frame: FrameType | None) -> bool:
        """Have the signal made pending again at the end of the call that it waits for; returns
        False if it waits for C++ code, which is short.
        """
        calls = list(_waited_for(frame))
        if not calls:
            return False
        found, key = calls[-1].f_locals, _NOTE + str(self.signum)
        if key not in found and calls[-1].f_code is not _Ended.__del__.__code__:
            found[key] = _Ended(self)
        return True
