"""Files that are replaced as a whole: a process that is killed leaves the earlier content."""

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PART = ".part"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A context manager for writing a file under another name, and renaming it at the end.

    Readers see either the old or the new content. If several processes write at once, the last one
    wins.

    Args:
        path: the file; anything but a regular file (a pipe, say) is written directly.

    Yields:
        The path to write to, with the same suffix.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        yield path
        return
    part = path.with_name(f".{path.stem}.{secrets.token_hex(8)}{_PART}{path.suffix}")
    try:
        yield part
        if path.exists():
            shutil.copymode(path, part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def remove_parts(directory: Path, *endings: str) -> None:
    """Remove unfinished files of killed processes; no process may be writing to the directory."""
    for ending in endings:
        for part in directory.glob(f".*{_PART}{ending}"):
            part.unlink(missing_ok=True)


@contextmanager
def alone_in(directory: Path) -> Iterator[bool]:
    """A context manager that holds a directory's lock, which excludes other processes.

    Yields:
        True if the lock is held; False on network file systems without locks.
    """
    with contextlib.ExitStack() as stack:
        locked = False
        with contextlib.suppress(OSError):
            handle = os.open(directory, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
            # Closing the file is not enough, because a forked process shares the lock.
            stack.callback(fcntl.flock, handle, fcntl.LOCK_UN)
            locked = True
        yield locked
