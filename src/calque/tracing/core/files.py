"""Files that are written whole: a process that is killed meanwhile leaves what there was before."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PART = ".part"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Inside this context a file is written under another name; it takes its own at the end.

    Whoever reads it finds the old one or the new one. Where several processes write it at once, the
    last stays.

    Args:
        path: of the file; what is no regular file (a pipe) is written as it is.

    Yields:
        Where to write, with the same ending.
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
    """Remove what killed processes have left of files that nobody writes now."""
    for ending in endings:
        for part in directory.glob(f".*{_PART}{ending}"):
            part.unlink(missing_ok=True)


@contextmanager
def alone_in(directory: Path) -> Iterator[bool]:
    """Inside this context no other process is in it for the same directory.

    Yields:
        Whether that is so: some systems, and some network folders, know no locks.
    """
    with contextlib.ExitStack() as stack:
        locked = False
        with contextlib.suppress(ImportError, OSError):
            import fcntl  # of Unix

            handle = os.open(directory, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
            stack.callback(fcntl.flock, handle, fcntl.LOCK_UN)  # a process forked has it, too
            locked = True
        yield locked
