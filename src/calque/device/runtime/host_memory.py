"""Keeps memory of the host that has been freed, for the next program.

On CPUs XLA allocates a program's temporaries, in one piece, at each call. The C library returns
pieces of that size to the system as soon as they are freed, and the system zeroes every page when
it hands it out again, which can take half of a training step.
"""

import ctypes
import os
import warnings

from calque.upstream.jax_internals import backends_are_initialized

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
"""Parameters of `mallopt`, from glibc's malloc.h."""


class _Settings:
    """Whether freed memory is kept."""

    kept = False


def keep_host_memory() -> None:
    """Make this process keep memory that it frees, for whatever is allocated next.

    For programs on CPUs with much memory for intermediate results, such as training steps of
    networks of convolutions, which may take half of the time then. It concerns the whole process,
    also memory of PyTorch and NumPy, and cannot be undone. The process stays as large as it ever
    was, until `torch.accelerator.empty_cache()` returns free memory to the system. In the first
    calls of a program, and if sizes vary, it can become larger than otherwise, because free pieces
    lie between others. All threads allocate from one heap, and wait for each other there.

    Call it before the first computation: threads of XLA that exist already go on as before.
    Allocators that replace that of the C library, such as jemalloc, have settings of their own.

    Raises:
        RuntimeError: the C library is not glibc, as on macOS and Windows.

    Warns:
        RuntimeWarning: JAX has already started its threads.
    """
    if not _has_glibc():
        raise RuntimeError(
            "keep_host_memory() needs glibc, the usual C library of Linux; leave the call out on "
            "other systems"
        )
    if _Settings.kept:
        return
    if backends_are_initialized():
        warnings.warn(
            "JAX has started its threads before keep_host_memory(), so that what they allocate is "
            "still returned to the system. Call it right after `import calque`",
            RuntimeWarning,
            stacklevel=2,
        )
    library = ctypes.CDLL(None)
    everything_from_the_heap = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1))
    if not all(library.mallopt(*setting) for setting in everything_from_the_heap):
        raise RuntimeError("the C library refuses to keep memory; another allocator may be loaded")
    _Settings.kept = True


def return_host_memory() -> None:
    """Return free memory to the system, if freed memory is kept."""
    if _Settings.kept:
        ctypes.CDLL(None).malloc_trim(0)


def _has_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (AttributeError, ValueError, OSError):  # Windows; macOS and musl
        return False
