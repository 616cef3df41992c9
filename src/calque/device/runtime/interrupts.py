"""Makes interrupts wait where they would break something.

Python runs a signal's handler in the main thread between any two instructions, and wherever C code
calls `PyErr_CheckSignals`; the handler may raise. In seven kinds of places that must not be:

- In PyTorch's device guard. Its C++ is `noexcept` and asks a Python method for the device's type,
  but before that pybind11 calls `str()` on a name, which looks for signals. An exception there ends
  the process. While C++ holds the method there is one more reference to it: that is the test.
- In what answers PyTorch's C++ about a tensor, where that is `noexcept`, too: the `device` of one
  that a mode or a class of tensors knows (`asks`).
- In a step that gives its inputs away and has not kept its results yet (`settles`).
- While code of calque's, PyTorch's or JAX's enters or leaves a context: what has been set would be
  set back late, when the traceback is freed, or never.
- In what the garbage collector, a weak reference, a dict in C, or a guard of dynamo's calls: they
  drop exceptions, so the interrupt would be lost.
- In what a library imports while it is used (`torch.export` imports SymPy): half of a package would
  be there, and whatever needs it would fail from then on.
- At an instruction of a library that belongs to no line (a jump back to the top of a loop, in
  Python 3.11): IPython cannot show such a traceback, and a notebook would go on.

A handler that comes at such a moment makes its signal pending again, as if it came a moment later.
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
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, ExitStack, _GeneratorContextManager
from operator import is_
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVar
from weakref import finalize, ref

import jax
import torch

from calque.errors.handlers import run_apart
from calque.upstream.python_internals import entered_unseen, importer, is_calling
from calque.upstream.torch_internals import is_guard

_Function = TypeVar("_Function", bound=Callable[..., object])
_STRAY_AFTER = 1.0  # seconds
_STRAY_CALLS = 1000
_SOON = 0.001  # seconds
_AT_ONCE = 2000
"""How often in a row a signal is made pending again at once, and not only soon."""


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

_FIRST = 3  # of what a function is given: itself, what it is asked, and of what

_waiting_contexts: set[int] = set()
_questions: set[int] = set()
_settling: dict[int, CodeType] = {}  # by identity: the hash of a code reads all of it
_generated: dict[int, ref[CodeType]] = {}


def settles(function: _Function) -> _Function:
    """Mark a function as one step: no signal handler runs before it returns.

    A handler waits while a call of it is anywhere on the stack of the main thread, however long
    that takes and however often the signal is sent. So nothing of the user's may be called in it.
    The mark costs a call nothing. It concerns handlers only: an exception that another thread sets
    (`PyThreadState_SetAsyncExc`) still arrives at the next instruction.

    Args:
        function: a function written in Python; a decorator beneath this one is not looked through.
            Of a generator that is a context, it is what runs when that is entered and left.
    """
    code = function.__code__  # type: ignore[attr-defined]
    _settling[id(code)] = code
    return function


def waits(function: _Function) -> _Function:
    """Mark functions that enter or leave a context of calque and may wait for other threads.

    Args:
        function: the generator function of the context, or its `__enter__` or `__exit__`.
    """
    _waiting_contexts.add(id(function.__code__))  # type: ignore[attr-defined]
    return function


def settles_in(code: CodeType) -> None:
    """Like `settles`, for generated code that may be discarded again."""
    key = id(code)
    _generated[key] = ref(code, lambda _: _generated.pop(key, None))


def asks(*operators: object) -> None:
    """Mark operators that C++ calls for a tensor's properties in `noexcept` code.

    A handler waits in what Python calls for them: a mode of PyTorch's, or a method of a class.
    """
    _questions.update(map(id, operators))


class Held:
    """A function that only C++ looks up, and that shows whether C++ is using it.

    Attributes:
        function: what to hand out; nobody else may keep a reference to it.
    """

    def __init__(self, function: FunctionType) -> None:
        # Not the function itself: a traceback that ends in it would hold it.
        self.function: functools.partial[Any] = functools.partial(function)
        self._usual = sys.maxsize  # nobody waits before `count`
        self._since = 0.0
        self._times = 0

    def count(self) -> None:
        """Store the current number of references as the usual one."""
        self._usual = sys.getrefcount(self.function)

    def is_held(self) -> bool:
        """Returns True if C++ is between looking the function up and the end of its call.

        A reference that stays has another cause (a tool that holds all objects there are) and
        must not hold up signals for ever.
        """
        if sys.getrefcount(self.function) <= self._usual:
            self._times = 0
            return False
        if not self._times:
            self._since = time.monotonic()
        self._times += 1
        # Both: the process may have been stopped meanwhile; a split in 10,000 asks as often.
        return self._times < _STRAY_CALLS or time.monotonic() - self._since < _STRAY_AFTER


_held: list[Held] = []


def hold(function: FunctionType) -> Callable[[], Any]:
    """Returns a callable for a C++ guard that cannot handle exceptions; handlers wait meanwhile."""
    held = Held(entered_unseen(function))
    _held.append(held)
    return held.function


def be_ready() -> None:
    """Start making handlers wait, once the result of `hold` is in place."""
    for held in _held:
        held.count()


def _has_to_wait(frame: FrameType | None) -> bool:
    """Returns True if a handler that interrupts this frame has to wait."""
    for held in _held:
        if held.is_held():
            return True
    if frame is not None and frame.f_lineno is None and _is_of(frame, _LIBRARIES):
        return True
    callbacks = {id(getattr(call, "__code__", None)) for call in gc.callbacks}
    waiting = _settling.keys() | _generated.keys() | callbacks
    within: int | None = None  # what the frame has called
    while frame is not None:
        if id(frame.f_code) in waiting or _drops_exceptions(frame) or _is_called_by_c(frame):
            return True
        if _is_of(importer(frame), _LIBRARIES):
            return True
        if within not in _waiting_contexts and _is_of_a_context(frame, waiting):
            return True
        within, frame = id(frame.f_code), frame.f_back
    return False


def _drops_exceptions(frame: FrameType) -> bool:
    """Returns True for code called by C code that drops or replaces exceptions."""
    code = frame.f_code
    if code is _FINALIZE:
        return frame.f_locals.get("_") is not None  # called for a weak reference, not by somebody
    if frame.f_back is not None and is_calling(frame.f_back, "fork"):
        return True  # what somebody has had called at each fork
    if is_guard(code):
        return True
    # Keys of JAX's caches are compared in C++.
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
    # What is called for a weak reference is given it once its object is gone.
    if code.co_argcount < _FIRST and any(
        isinstance(each, ref) and each() is None for each in given
    ):
        return True
    if code.co_flags & inspect.CO_VARARGS:  # around another function
        given = next((each for each in given if isinstance(each, tuple)), ())[:_FIRST]
    return any(id(each) in _questions for each in given)


def _is_of_a_context(frame: FrameType, waiting: AbstractSet[int]) -> bool:
    """Returns True if this frame enters or leaves a library's context, or one marked as a step.

    Args:
        frame: it.
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
    # Not one of PyTorch's that the user enters: a profiler's calls what the user has it call.
    return _is_of(frame, _CALQUE) or (_is_of(frame, _LIBRARIES) and _is_of(by, _LIBRARIES))


def _is_of(frame: FrameType | None, folders: str | tuple[str, ...]) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(folders)


def _make_pending_soon(signum: int) -> None:
    """Send the signal to the main thread again, which may have started to sleep meanwhile."""
    time.sleep(_SOON)
    if isinstance(getsignal(signum), Handler):  # and not the system's, which might end the process
        [*map(pthread_kill, (threading.main_thread().ident,), (signum,))]


class _Tracing(threading.local):
    """What a trace of this thread has handlers run in.

    Attributes:
        apart: makes a context in which nothing is traced; None where no trace runs.
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

    Its `__call__` is a property, which says what is to be called. So the handler is called by the
    interpreter itself, and tracebacks show the user's frames and none of this class.

    Attributes:
        handler: the user's.
    """

    __slots__ = ("_signum", "_times", "handler")

    def __init__(self, signum: int, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._signum = signum
        self._times = 0  # that it has waited in a row
        self.handler: Callable[[int, FrameType | None], Any] = handler

    @property
    @entered_unseen
    def __call__(self) -> Callable[..., Any]:
        """Calls the user's handler, or does nothing."""
        global _deciding
        late = _late
        if _deciding:
            late += [self._signum]
            return is_
        _deciding = True
        try:
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
            self._times = 0
            if tracing.apart is None:
                return self.handler
            return functools.partial(run_apart, tracing.apart(), self.handler)
        self._times += 1
        # Python 3.11 looks for signals again before it goes on with the first instruction of a
        # function that is traced, so that one which is pending at once would stop all else. And
        # what takes long (a first call imports modules) would take a hundred times as long.
        if self._times > _AT_ONCE or sys.gettrace() is not None or sys.getprofile() is not None:
            start_new_thread(_make_pending_soon, (self._signum,))
        else:
            _late.append(self._signum)
        return is_
