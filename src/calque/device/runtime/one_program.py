"""Makes CPUs of several processes run one program at a time.

XLA's CPU client runs each device's part of a program in a pool of threads. In a program over
several processes, a part waits in a collective for the other processes, and a dozen programs that
were started without reading their results deadlock. So each call of a program that spans processes
waits for its results. JAX's fast calls in C++, which do not wait, are disabled: a collective over a
network of CPUs takes longer than they save.

The values of each process (a batch, a number, the random state) are compared before each call,
because JAX uses each process's own values. The program itself, which may contain different
constants, is compared at its first call.

GPUs and TPUs have their own queues and are not affected.
"""

import functools
import hashlib
import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import jax
import numpy as np

from calque.device.runtime import replicated_values
from calque.device.runtime.divergence import ProgramWatch
from calque.device.runtime.in_flight import exchanges
from calque.upstream.jax_internals import pjit, pxla

_installed = False
_placements: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_of_all: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
_digests: dict[int, bytes] = {}  # programs that have not run yet, by the ids of their executables
_compared: WeakValueDictionary[int, Any] = WeakValueDictionary()


def is_needed() -> bool:
    """Returns True if this process computes on CPUs together with others."""
    return jax.distributed.is_initialized() and jax.default_backend() == "cpu"


def is_installed() -> bool:
    """Returns True if calls wait for their programs in this process."""
    return _installed


def install() -> None:
    """Make calls wait from now on, if necessary (a second call does nothing)."""
    global _installed
    if _installed or not is_needed() or jax.process_count() == 1:
        return
    _installed = True
    watch = ProgramWatch()
    run = pxla.ExecuteReplicated.__call__

    @functools.wraps(run)
    def run_and_wait(self: Any, *args: Any) -> Any:
        placement = _over_processes(self)
        if placement is None:
            return run(self, *args)
        own, is_of_all = _own(self, args), _is_of_all(self, placement)
        if own or is_of_all:  # otherwise a process may run it alone
            _check_program(self, placement)
        replicated_values.check_all(own, placement)
        if not is_of_all:
            return jax.block_until_ready(run(self, *args))
        with watch.noting(self.name):
            return jax.block_until_ready(run(self, *args))

    pxla.ExecuteReplicated.__call__ = run_and_wait
    pjit._get_fastpath_data = lambda *args, **kwargs: None
    pxla.MeshExecutable.create_cpp_call = lambda self, params: None
    pxla.compiler.compile_or_get_cached = _noting(pxla.compiler.compile_or_get_cached)
    jax.clear_caches()  # removes programs that C++ calls directly


def _noting(compile: Any) -> Any:
    """Wraps JAX's compile function to keep a digest of each program until it has run."""

    @functools.wraps(compile)
    def compile_noting(backend: Any, computation: Any, *args: Any, **kwargs: Any) -> Any:
        made = compile(backend, computation, *args, **kwargs)
        _digests[id(made)] = hashlib.sha256(str(computation).encode()).digest()
        return made

    return compile_noting


class _Checking(threading.local):
    now = False


_checking = _Checking()


def _check_program(program: Any, placement: Any) -> None:
    """Raise DisagreementError if a program differs in other processes."""
    digest = _digests.pop(id(program.xla_executable), None)
    if digest is None or _checking.now or program.has_host_callbacks:
        return  # the text contains addresses of callbacks; and the check itself runs programs
    _checking.now = True
    try:
        replicated_values.check_program(program.name, digest, placement)
    finally:
        _checking.now = False


def _over_processes(program: Any) -> Any:
    """Returns a placement of a program over the devices of several processes, or None."""
    if program not in _placements:
        handlers = program.in_handler.in_shardings, program.out_handler.out_shardings
        spans = [one for shardings in handlers for one in shardings if replicated_values.spans(one)]
        _placements[program] = max(spans, key=lambda one: one.num_devices, default=None)
    return _placements[program]


def _is_of_all(program: Any, placement: Any) -> bool:
    """Returns True if a program runs in all processes."""
    if program not in _of_all:
        processes = {device.process_index for device in placement.device_set}
        texts = (module.to_string() for module in program.xla_executable.hlo_modules())
        spans = len(processes) == jax.process_count()
        _of_all[program] = spans and any(map(exchanges, texts))
    return _of_all[program]


def _own(program: Any, args: Sequence[Any]) -> list[np.ndarray]:
    """Returns the arguments that each process supplies, except those compared before."""
    own = []
    for index in sorted(program.kept_var_idx):
        value = args[index]
        if isinstance(value, jax.Array):
            if not value.is_fully_addressable or _compared.get(id(value)) is value:
                continue
            _compared[id(value)] = value
        own.append(np.asarray(value))
    return own
