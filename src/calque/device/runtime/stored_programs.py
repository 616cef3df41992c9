"""Compiled programs in files shared by processes: JAX's persistent cache, kept small and intact.

JAX's own store reads the times of all entries at each write, and keeps incomplete entries forever.
Here, a file gets its name only when it is complete, has a checksum, and the least recently used
files are removed when the total is too large. Processes do not wait for each other.
"""

import contextlib
import os
import tempfile
import threading
import time
import zlib
from pathlib import Path

from calque.errors import CacheWarning
from calque.errors.warning import warn

_SUFFIX = ".xla"
_CHECKSUM = 4  # bytes, at the end
_ABANDONED = 3600.0  # seconds after which an incomplete file is attributed to a killed process


class Store:
    """The store that JAX reads compiled programs from and writes them to.

    Args:
        folder: the folder of the files, created by the first write.
        most: the approximate maximum total size in bytes.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder: Path = folder
        self._path = folder
        self.most = most
        self._total: int | None = None  # until the first write
        self._writes = True
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """Returns the entry of a key; None if it is missing or incomplete."""
        path = self.folder / (key + _SUFFIX)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        value = data[:-_CHECKSUM]
        whole = data[-_CHECKSUM:] == _checksum(value)
        # The file may be read-only, or removed by another process.
        with contextlib.suppress(OSError):
            os.utime(path) if whole else path.unlink()
        return value if whole else None

    def put(self, key: str, value: bytes) -> None:
        """Write an entry; after the first failure, which warns, nothing more is written."""
        with self._lock:
            if not self._writes or len(value) > self.most:
                return
            try:
                self._write(key, value)
                self._bound(len(value) + _CHECKSUM)
            except OSError as error:
                self._writes = False
                warn(
                    f"compiled programs cannot be kept in {self.folder} ({error}): the next "
                    "process compiles them again. Choose another folder with CALQUE_CACHE_DIR "
                    'or calque.compilation_cache, or set CALQUE_CACHE_DIR="off"',
                    CacheWarning,
                )

    def clear(self) -> None:
        """Remove all entries."""
        for path in self.folder.glob("*" + _SUFFIX):
            path.unlink(missing_ok=True)

    def _write(self, key: str, value: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=self.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(value + _checksum(value))
            os.replace(name, self.folder / (key + _SUFFIX))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def _bound(self, added: int) -> None:
        """Remove the oldest entries if there are too many. Recounts, because other processes also
        write.
        """
        if self._total is not None:
            self._total += added
            if self._total <= self.most:
                return
        entries = []
        now = time.time()
        with os.scandir(self.folder) as found:
            for entry in found:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    if entry.name.endswith(_SUFFIX) or now - status.st_mtime > _ABANDONED:
                        entries.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries) if total > self.most else ():
            if total <= self.most * 3 // 4:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            total -= size
        self._total = total


def _checksum(value: bytes) -> bytes:
    return zlib.crc32(value).to_bytes(_CHECKSUM, "little")
