"""Observes code in this thread just before it runs for the first time.

On Python 3.12 and later, it uses `sys.monitoring`, which costs nothing after a piece of code was
seen; before that, a trace function that handles only calls. An existing trace function (of a
debugger, a coverage tool) is still called, and while code of calque runs, it is removed
(`watched_calls`).
"""

import inspect
import linecache
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FrameType, MethodDescriptorType
from typing import Any

import torch
from torch.optim import Optimizer, lr_scheduler

from calque.errors.frames import Origin, user_origin
from calque.state.code_attributes import ASSIGNED, SPECIAL_NAMES, assignments
from calque.state.foreign_callbacks import comes_between
from calque.state.impure_builtins import NAMES, differs, home_of
from calque.state.names import names_of
from calque.state.ownership import Owner, owner_of_code, owner_of_file
from calque.state.snapshot import Snapshot
from calque.state.watched_calls import MONITORS, active
from calque.upstream.python_internals import UNSEEN_FILES, UNSEEN_NAMES, entered_unseen, set_hook

_EVENTS = ("open", "socket.", "subprocess.Popen", "os.", "shutil.", "tempfile.", "sqlite3.")
_REPEATED = frozenset(("os.putenv", "os.unsetenv"))
"""Events of what each call repeats: the environment is a dict."""
_TELLING = frozenset(m.__file__ for m in (linecache, logging, traceback, warnings))
"""Files of Python's library whose code only writes output; when it does is not state."""
_READS = frozenset(("tolist", "numpy"))
"""Methods that read a CPU tensor without any PyTorch operator."""
_SCHEDULERS = lr_scheduler.__file__
_OF_OPTIMIZERS = frozenset(
    inspect.unwrap(method).__code__
    for method in (Optimizer.state_dict, Optimizer.__getstate__, Optimizer.__repr__)
)
_AS_ARRAY = torch.Tensor.__array__.__code__
_REPORTED = frozenset((_AS_ARRAY, torch.Tensor.__hash__.__code__))
_TELLING_ENGINE = (_AS_ARRAY.co_filename, os.path.dirname(_SCHEDULERS))
"""The files of `_REPORTED`, and those of which `_visit_engine` looks at each function."""


class Running:
    """Reports to a snapshot which code runs in the steps of optimizers, and which outside.

    Args:
        snapshot: receives each code object before it runs.
        on_read: called for each CPU tensor that is read as Python values.

    Attributes:
        creates_optimizers: whether an optimizer was created.
        scheduler_stepped: the user's line at which a scheduler of PyTorch's stepped first.
        all_reported: whether an optimizer has reported everything in its param groups and state.
    """

    def __init__(
        self, snapshot: Snapshot, on_read: Callable[[Any], None] = lambda tensor: None
    ) -> None:
        self._snapshot = snapshot
        self._on_read = on_read
        self.creates_optimizers: bool = False
        self.scheduler_stepped: Origin | None = None
        self.all_reported: bool = False
        # By id, because equal code in two files is not the same.
        self._seen: dict[int, CodeType] = {}
        self._entered: dict[int, CodeType] = {}
        self._quiet: set[str] = set()  # files that ran, and that define nothing to report
        self._now: set[CodeType] = snapshot.code.outside
        self._before: Any = None
        self._calls_watched = False
        snapshot.on_difference = self._watch_calls

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context manager that watches this thread."""
        outer = active.running
        active.running = self
        _install_audit()
        try:
            with (
                self._snapshot.namespaces.interception.installed(),
                _monitored(self) if MONITORS else self._traced(),
            ):
                if self._snapshot.has_differing:
                    self._watch_calls()
                yield
        finally:
            active.running = outer

    def in_step(self, stepping: bool) -> None:
        """Handle the begin or end of an optimizer's step, in which code that has already run is
        observed again.

        Args:
            stepping: whether it begins.
        """
        code = self._snapshot.code
        self._now = code.in_steps if stepping else code.outside
        for key in self._entered:
            self._seen.pop(key, None)
        if MONITORS:
            monitoring: Any = sys.monitoring  # pyright: ignore[reportAttributeAccessIssue]
            monitoring.restart_events()

    # Before Python 3.12 -----------------------------------------------------------------------

    @contextmanager
    def _traced(self) -> Iterator[None]:
        before, profile = sys.gettrace(), sys.getprofile()
        by_trace = before is None or profile is not None
        self._before = before if by_trace else None
        outer, hook = active.hook, self._on_call()
        active.hook = hook if before is None else None
        if by_trace:
            set_hook(sys.settrace, hook)
        else:
            set_hook(sys.setprofile, self._on_profile)
        try:
            yield
        finally:
            active.hook = outer
            if by_trace:
                set_hook(sys.settrace, before)
            if sys.getprofile() is not profile:  # a C profile function cannot be set from Python
                set_hook(sys.setprofile, profile)

    def _on_call(self) -> Callable[[FrameType, str, Any], Any]:
        """Handles every call of Python code, so it must be fast."""
        seen, visit, before, quiet = self._seen, self._visit, self._before, self._quiet

        @entered_unseen
        def on_call(frame: FrameType, event: str, argument: object) -> Any:
            code = frame.f_code
            # Nothing before this may let an exception of another thread in, because C++ calls these
            # functions.
            file = code.co_filename
            if file in quiet or (code.co_name in UNSEEN_NAMES and file in UNSEEN_FILES):
                return
            if id(code) not in seen:  # which Python tells the audit hook
                visit(code, frame)

        def on_call_and_pass(frame: FrameType, event: str, argument: object) -> Any:
            on_call(frame, event, argument)
            return before(frame, event, argument)

        return on_call if before is None else on_call_and_pass

    @entered_unseen
    def _on_profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            code = frame.f_code
            if code.co_name in UNSEEN_NAMES and code.co_filename in UNSEEN_FILES:
                return
            if id(code) not in self._seen:
                self._visit(code, frame)
        elif event == "c_call":
            self.called(argument, getattr(argument, "__self__", None), frame.f_code, frame.f_lineno)

    # Observed code --------------------------------------------------------------------------------

    def _visit(self, code: CodeType, frame: FrameType) -> None:
        if code in _REPORTED:
            self.report(code, frame)
            return
        self._seen[id(code)] = code
        if owner_of_file(code.co_filename) is Owner.ENGINE:
            self._visit_engine(code)
            if not code.co_filename.startswith(_TELLING_ENGINE):
                self._quiet.add(code.co_filename)
            return
        if comes_between(frame):
            del self._seen[id(code)]
            return
        self.start(code, frame)

    def start(self, code: CodeType, frame: FrameType) -> bool:
        """Handle the first run of a code object; returns True if its calls must be watched."""
        if owner_of_code(code, frame.f_globals) is Owner.ENGINE:
            self._visit_engine(code)
            return False
        caller = frame.f_back.f_code if frame.f_back is not None else None
        if id(code) in self._entered:
            self._now.add(code)
            return self._calls_watched
        if not self._snapshot.enter(code, frame.f_globals, caller, lambda: _closure(frame)):
            return False
        self._entered[id(code)] = code
        self._now.add(code)
        words = names_of(code).words
        if not (NAMES | _READS).isdisjoint(words):  # methods are not yet looked up
            self._watch_calls()
        return self._calls_watched

    def _visit_engine(self, code: CodeType) -> None:
        self.all_reported |= code in _OF_OPTIMIZERS
        self.creates_optimizers |= code is Optimizer.__init__.__code__
        of_scheduler = code.co_filename == _SCHEDULERS and code.co_varnames[:1] == ("self",)
        if of_scheduler or code.co_qualname.startswith("SWALR."):
            self._snapshot.look_into_schedulers()
            if code.co_name == "step":
                self.scheduler_stepped = self.scheduler_stepped or user_origin()

    def _watch_calls(self) -> None:
        # Outside the function's run, no profile function must be left behind.
        if not self._calls_watched and active.running is self:
            self._calls_watched = True
            if not MONITORS and sys.getprofile() is None:
                set_hook(sys.setprofile, self._on_profile)

    def called(self, function: Any, owner: Any, code: CodeType, line: int) -> None:
        """Handle the call of a builtin function or method, at a line of a code object."""
        if code not in self._snapshot.codes or code.co_filename in _TELLING:
            return
        if differs(function):
            self.note(f"{home_of(function)}.{function.__name__} is called", code, line)
        elif isinstance(function, BuiltinFunctionType | MethodDescriptorType):
            if function.__name__ in _READS:
                self._read(owner)

    def report(self, code: CodeType, frame: FrameType) -> None:
        """Handle each call of a method of tensors that tells more than operators see."""
        if code is _AS_ARRAY:
            self._read(frame.f_locals["self"])
        elif (caller := self._calling(frame)) is not None and caller >= Owner.PACKAGE:
            self._snapshot.code.told.add(id(frame.f_locals["self"]))

    def _calling(self, frame: FrameType) -> Owner | None:
        """Returns the owner of the code that called a function, maybe through Python's library;
        None if it is none of the program's.
        """
        owner, outer = None, frame.f_back
        while outer is not None:
            owner = self._snapshot.codes.get(outer.f_code)
            if owner is not Owner.PYTHON:
                break
            outer = outer.f_back
        return owner

    def _read(self, value: object) -> None:
        if isinstance(value, torch.Tensor) and value.device.type == "cpu":
            self._on_read(value)

    def note(self, what: str, code: CodeType, line: int) -> None:
        """Record an action whose result may differ in the next call."""
        frame = sys._getframe(1)
        place = f"{code.co_filename}:{line}"
        while frame is not None:  # the user's line, even if a library's function does it
            owner = self._snapshot.codes.get(frame.f_code)
            if owner is Owner.USER:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
                break
            frame = frame.f_back
        self._snapshot.unrepeatable.append(f"{place}: {what}")


def _closure(frame: FrameType) -> dict[str, Any]:
    """Returns the values of the free variables of a call."""
    held = frame.f_locals
    return {name: held[name] for name in frame.f_code.co_freevars if name in held}


@contextmanager
def _monitored(running: Running) -> Iterator[None]:
    """Watches on Python 3.12 and later."""
    monitoring: Any = sys.monitoring  # pyright: ignore[reportAttributeAccessIssue]
    events = monitoring.events
    tool = next((i for i in (4, 3, 5, 1, 0, 2) if monitoring.get_tool(i) is None), None)
    if tool is None:
        with running._traced():
            yield
        return
    thread = threading.get_ident()

    def on_start(code: CodeType, offset: int) -> Any:
        if threading.get_ident() != thread:
            return None
        if code in _REPORTED:
            running.report(code, sys._getframe(1))
            return None
        if owner_of_file(code.co_filename) is Owner.ENGINE:
            running._visit_engine(code)
            return monitoring.DISABLE
        frame = sys._getframe(1)
        if comes_between(frame):
            return None
        if running.start(code, frame):
            monitoring.set_local_events(tool, code, events.CALL)
        return monitoring.DISABLE

    def on_call(code: CodeType, offset: int, function: object, argument: object) -> Any:
        if threading.get_ident() == thread:
            running.called(function, argument, code, sys._getframe(1).f_lineno)

    monitoring.use_tool_id(tool, "calque")
    try:
        monitoring.register_callback(tool, events.PY_START, on_start)
        monitoring.register_callback(tool, events.CALL, on_call)
        monitoring.restart_events()
        monitoring.set_events(tool, events.PY_START)
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, events.PY_START, None)
        monitoring.register_callback(tool, events.CALL, None)
        monitoring.free_tool_id(tool)


def _install_audit() -> None:
    """Install one audit hook for the process, because Python cannot remove audit hooks."""
    if not assignments.are_told:
        sys.addaudithook(_on_audit)
        assignments.are_told = True


@entered_unseen
def _on_audit(event: str, arguments: tuple[Any, ...]) -> None:
    # A trace causes very many of these: it compares ids, and reads the code of frames.
    if event in {"builtins.id", "object.__getattr__", "sys.settrace", "sys._getframe"}:
        return
    if _EVENTS is None:  # Python is exiting, and has cleared the module, beginning with such names
        return
    if event in ASSIGNED:  # no calls here, so that other threads do not run in between
        if arguments[1] in SPECIAL_NAMES:
            one, other, third = assignments.unnoticed
            value = arguments[-1]
            if value is not one and value is not other and value is not third:
                assignments.count += 1
        return
    if not event.startswith(_EVENTS) or (running := active.running) is None:
        return
    if event in _REPEATED:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:  # the nearest code outside the standard library
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib") or code.co_name in _READERS:
            return
        owner = owner_of_file(code.co_filename)
        if owner is Owner.ENGINE:
            return
        if owner is not Owner.PYTHON:
            if code in running._snapshot.codes:
                running.note(f"{event.partition('.')[0]} is used", code, frame.f_lineno)
            return
        frame = frame.f_back


_READERS = frozenset(("updatecache", "getlines", "getsourcelines", "findsource"))
"""Functions of Python's library that read source files for a traceback or a warning."""


class Suspension:
    """Suspends watching of this thread while calque's own code runs."""

    def __enter__(self) -> None:
        self._running = active.running
        active.running = None

    def __exit__(self, *exception: object) -> None:
        active.running = self._running
