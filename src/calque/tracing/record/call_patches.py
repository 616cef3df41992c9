"""Patches, while a program is recorded, for calls that modes do not intercept."""

import concurrent.futures.thread
import contextlib
import copy
import functools
import gc
import multiprocessing.pool
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from calque.tracing.core.active import current_trace, tracing
from calque.tracing.core.patching import Patches
from calque.tracing.core.torch_settings import hold_settings
from calque.tracing.proxies.modules import hold_calls
from calque.tracing.record.operator_mode import OperatorMode
from calque.tracing.record.recorder import FunctionMode, Recorder
from calque.tracing.symbolic.contexts import hold_contexts
from calque.tracing.symbolic.randomness import hold_randomness
from calque.upstream.torch_internals import get_current_function_mode_stack, pop_mode, push_mode

_PATIENCE = 100  # milliseconds; this thread itself may be in a collection, in a finalizer
_OF_POOLS = ("apply_async", "_map_async", "imap", "imap_unordered")


def hold(patches: Patches) -> None:
    """Patch the functions by which a recording observes modules, blocks, settings, random numbers
    and threads.
    """
    hold_calls(patches)
    hold_contexts(patches)
    hold_settings(patches)
    hold_randomness(patches)
    patches.hold(torch, "cond", _followed_cond)
    patches.hold(torch, "while_loop", _followed_loop)
    patches.hold(threading.Thread, "start", _started)
    patches.hold(concurrent.futures.ThreadPoolExecutor, "submit", _submitted)
    for name in _OF_POOLS:
        patches.hold(multiprocessing.pool.Pool, name, _submitted_to_pool)
    patches.hold(torch.Tensor, "__reduce_ex__", _copied)
    patches.hold(torch.overrides, "has_torch_function", _as_without_us)


@contextlib.contextmanager
def entered(recorder: Recorder) -> Iterator[None]:
    """A context manager that records this thread."""
    functions, operators = FunctionMode(recorder), OperatorMode(recorder, recorder.local)
    with tracing(recorder), operators:
        push_mode(functions)
        recorder.local.is_entered = True
        try:
            yield
        finally:
            recorder.local.is_entered = False
            _remove(functions)


def _remove(functions: TorchFunctionMode) -> None:
    """Remove a mode from the stack, wherever it is: the program may have left others on top."""
    taken = []
    while get_current_function_mode_stack():
        mode = pop_mode()
        if mode is functions:
            break
        taken.append(mode)
    for mode in reversed(taken):
        push_mode(mode)


@contextlib.contextmanager
def new_tensors_apart() -> Iterator[Callable[[], Collection[int] | None]]:
    """A context manager in which the garbage collector's youngest generation has all objects
    created inside.

    The collector is disabled meanwhile. Yields a function that returns the ids of the tensors
    created inside, in any thread; or None if this is not known, because the program itself has run
    the collector. (`gc.freeze` would work too, but it distorts the collector's estimate of the
    heap, so every later collection would be a full one.)

    If there is such a context already, in another thread, the older tensors of that generation are
    kept alive to the end, so that no new one gets the id of one of them.
    """
    older: dict[int, torch.Tensor] = {}
    this = object()
    try:
        with _apart.lock:
            if not _apart.running:
                _apart.enabled = gc.isenabled()
            _apart.running.add(this)
            gc.disable()
            if len(_apart.running) == 1:
                _collect_young()
            else:
                older = _young_tensors()
            before = _collections()
        yield lambda: None if _collections() != before else _young_tensors().keys() - older.keys()
    finally:
        with _apart.lock:
            _apart.running.discard(this)
            if not _apart.running and _apart.enabled:
                gc.enable()


def _collect_young() -> None:
    """Collect the youngest generation, once a collection of another thread is over."""
    for _ in range(_PATIENCE):
        before = _collections()
        gc.collect(0)
        if _collections() != before:
            return
        time.sleep(0.001)


class _Apart:
    """The contexts of `new_tensors_apart` in all threads.

    Attributes:
        running: one object for each.
        enabled: whether the collector was enabled before the first of them.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a finalizer may record
        self.running: set[object] = set()
        self.enabled = True


_apart = _Apart()


def _young_tensors() -> dict[int, torch.Tensor]:
    # One call of C code: another thread that runs meanwhile may be building a tuple, which fails if
    # there is a reference to it.
    young = chain.from_iterable(map(gc.get_objects, (0,)))
    return {id(tensor): tensor for tensor in list(filter(_is_tensor, young))}


_is_tensor = functools.partial(type.__instancecheck__, torch.Tensor)


def _collections() -> list[int]:
    return [generation["collections"] for generation in gc.get_stats()]


def _recorder() -> Recorder | None:
    trace = current_trace()
    return trace if isinstance(trace, Recorder) and not trace.ended else None


def _followed(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that it is recorded in any thread."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if recorder.ended or current_trace() is recorder:
            return function(*args, **kwargs)
        with entered(recorder):
            return function(*args, **kwargs)

    return run


def _started(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(thread: threading.Thread) -> None:
        recorder = _recorder()
        target = getattr(thread, "_target", None)
        serves_a_pool = target is concurrent.futures.thread._worker
        is_ours = str(getattr(target, "__module__", "")).startswith("calque.")
        if recorder is None or serves_a_pool or is_ours:
            return original(thread)
        run: Any = thread.run

        def run_once() -> None:
            del vars(thread)["run"]
            _followed(recorder, run)()

        vars(thread)["run"] = run_once
        return original(thread)

    return start


def _submitted(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def submit(pool: object, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        recorder = _recorder()
        if recorder is not None:
            function = _followed(recorder, function)
        return original(pool, function, *args, **kwargs)

    return submit


def _submitted_to_pool(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def submit(pool: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = _recorder()
        if recorder is not None and isinstance(pool, multiprocessing.pool.ThreadPool):
            function = _followed(recorder, function)
        return original(pool, function, *args, **kwargs)

    return submit


def _copied(original: Callable[..., Any]) -> Callable[..., Any]:
    """Records `copy.copy`, which creates a tensor from `__reduce_ex__`, without a call that modes
    intercept.
    """

    @functools.wraps(original)
    def reduce_ex(tensor: object, protocol: object) -> Any:
        recorder = _recorder()
        is_copied = sys._getframe(1).f_code is copy.copy.__code__
        if recorder is None or not is_copied or recorder.contexts is None:
            return original(tensor, protocol)
        return recorder.copy, (tensor,)

    return reduce_ex


def _as_without_us(original: Callable[..., Any]) -> Callable[..., Any]:
    """Hides calque's modes from PyTorch layers that would take a different path if they saw
    them.
    """

    @functools.wraps(original)
    def has_torch_function(relevant_args: object) -> bool:
        stack = get_current_function_mode_stack()
        if _recorder() is None or len(stack) != 1 or not isinstance(stack[0], FunctionMode):
            return original(relevant_args)
        mode = pop_mode()
        try:
            return original(relevant_args)
        finally:
            push_mode(mode)

    return has_torch_function


def _is_recorded() -> bool:
    trace = current_trace()
    contexts = getattr(trace.tracer, "contexts", None) if trace is not None else None
    return contexts is not None and contexts.repeats


def _followed_cond(original: Callable[..., Any]) -> Callable[..., Any]:
    """Runs one branch of `torch.cond`; PyTorch's own compiles both."""

    @functools.wraps(original)
    def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        if not _is_recorded():
            return original(pred, true_fn, false_fn, operands)
        return true_fn(*operands) if pred else false_fn(*operands)

    return cond


def _followed_loop(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
        if not _is_recorded():
            return original(cond_fn, body_fn, carried_inputs)
        carried = carried_inputs
        while cond_fn(*carried):
            carried = body_fn(*carried)
        return carried

    return loop
