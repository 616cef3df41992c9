"""Keeps compiled programs for the next process.

JAX has a persistent cache, which is off until a folder is set. Unless JAX has one, calque sets a
folder below the user's cache folder, and makes JAX keep small programs too, because an eager step
consists of a hundred of them. If you configure JAX's cache after importing calque, before the first
program is compiled, calque does not change it.
"""

import hashlib
import os
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jaxlib

from calque.device.runtime.stored_programs import Store
from calque.errors import CacheWarning
from calque.errors.warning import warn
from calque.upstream.jax_internals import compilation_cache as jax_cache

VARIABLE = "CALQUE_CACHE_DIR"
DEFAULT = 2 << 30
_DIRECTORY = "jax_compilation_cache_dir"
_SHORTEST = "jax_persistent_cache_min_compile_time_secs"
_UNCHANGED: Any = object()


class _Settings:
    """The settings in effect.

    Attributes:
        folder: the folder in which calque keeps programs; None if it keeps none.
        most: the maximum total size in bytes.
        shortest: JAX's own minimum compile time of programs to keep.
        others: JAX's own function that opens a cache.
    """

    folder: Path | None = None
    most: int = DEFAULT
    shortest: float = 1.0
    others: Callable[[str], Any]


_settings = _Settings()


def compilation_cache(
    directory: str | os.PathLike[str] | None = _UNCHANGED, *, max_bytes: int = DEFAULT
) -> Path | None:
    """Set the folder in which compiled programs are kept for the next process, or turn the cache
    off.

    The cache is on by default, in `calque` in the user's cache folder (`~/.cache` on Linux) or in
    the folder given by the environment variable `CALQUE_CACHE_DIR` ("off" turns the cache off),
    unless JAX is configured to keep programs elsewhere. JAX's own programs in this process are kept
    there too. Programs that call Python functions are not kept.

    Args:
        directory: a folder, created when needed. Other users should not be able to write to it,
            because the programs in it are executed. None turns the cache off. By default, nothing
            changes.
        max_bytes: the maximum total size of the programs in the folder; the least recently used are
            removed first.

    Returns:
        The folder in which programs are now kept, a subfolder of `directory` for this processor and
        JAX release; None if the cache is off.

    Raises:
        ValueError: `max_bytes` is negative.

    >>> import calque
    >>> calque.compilation_cache(None)
    >>> calque.compilation_cache() is None
    True
    """
    if max_bytes < 0:
        raise ValueError(f"max_bytes must be a number of bytes, not {max_bytes}")
    if directory is not _UNCHANGED:
        _use(None if directory is None else Path(directory).expanduser(), max_bytes)
    current = getattr(jax.config, _DIRECTORY)
    return None if current is None or not jax.config.jax_enable_compilation_cache else Path(current)


def install() -> None:
    """Turn the cache on, as configured by the environment."""
    _settings.others = jax_cache.get_file_cache
    jax_cache.get_file_cache = _opened
    asked = os.environ.get(VARIABLE)
    if asked is not None and asked.strip().lower() in ("", "0", "off", "none"):
        return
    if getattr(jax.config, _DIRECTORY) or not jax.config.jax_enable_compilation_cache:
        return  # set by the user
    folder, reason = Path(asked) if asked else _usual(), None
    if folder is None:
        return
    try:
        folder = folder.expanduser()
    except RuntimeError:
        reason = "names an unknown home folder"
    reason = reason or _unusable(folder)
    if reason is None:
        _use(folder, DEFAULT)
        return
    warn(
        f"compiled programs are not kept for the next process: {folder} {reason}. Choose another "
        f'folder with {VARIABLE}, or set {VARIABLE}="off"',
        CacheWarning,
    )


def _use(directory: Path | None, most: int) -> None:
    if _settings.folder is None:
        _settings.shortest = getattr(jax.config, _SHORTEST)
    _settings.folder = None if directory is None else directory.absolute() / _here()
    _settings.most = most
    own = _settings.folder is not None
    jax.config.update(_DIRECTORY, str(_settings.folder) if own else None)
    jax.config.update(_SHORTEST, 0.0 if own else _settings.shortest)
    if jax_cache._cache is not None or jax_cache._cache_initialized:  # already open
        jax_cache.reset_cache()


def _opened(path: str) -> Any:
    """Returns the object through which JAX accesses a folder, which is created at its first use."""
    if _settings.folder is not None and Path(path) == _settings.folder:
        return Store(_settings.folder, _settings.most), path
    if _settings.folder is not None and getattr(jax.config, _SHORTEST) == 0.0:
        jax.config.update(_SHORTEST, _settings.shortest)
    return _settings.others(path)


def _usual() -> Path | None:
    """Returns the user's cache folder; None without a home directory."""
    import platformdirs

    folder = Path(platformdirs.user_cache_dir("calque", appauthor=False))
    return folder if folder.is_absolute() else None


def _unusable(folder: Path) -> str | None:
    """Returns the reason why a folder cannot be used; None if it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
    except OSError as error:
        return f"cannot be created ({error.strerror})"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "is not writable"
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        return "belongs to another user, whose programs would run"
    return None


@cache
def _here() -> str:
    """Returns a name for this release of JAX and kind of processor, on which programs depend."""
    parts = [jax.__version__, jaxlib.__version__, platform.machine(), platform.system()]
    try:
        with open("/proc/cpuinfo") as file:
            parts += [line for line in file.read(16384).splitlines() if line.startswith("flags")][
                :1
            ]
    except OSError:
        parts.append(platform.processor())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
