"""Tells which files belong to installed packages.

All in `site-packages` and `dist-packages` do. In other folders that Python has imported from (those
of `pip install --target`), the files do that an installer lists in the `RECORD` of a distribution
beside them; a checkout and the user's files in the same folder are in no such list.
"""

import functools
import os
import sys

_SITE = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_INFO = ".dist-info"


def is_installed(file: str) -> bool:
    """Returns True if a file belongs to an installed package."""
    return bool(package_of(file))


@functools.lru_cache(maxsize=16384)
def package_of(file: str) -> str:
    """Returns the top-level name of the installed package of a file; empty if it has none.

    >>> package_of("/env/lib/python3.11/site-packages/jax/numpy/linalg.py")
    'jax'
    """
    for site in _SITE:
        _, found, name = file.rpartition(site)
        if found:
            return _top(name)
    if not os.path.isabs(file):
        return ""
    for folder in _ancestors(file):
        name = file[len(folder) + 1 :].replace(os.sep, "/")
        try:
            changed = os.stat(folder).st_mtime_ns
        except OSError:
            continue
        if name in _listed(folder, changed):
            return _top(name)
    return ""


def _top(name: str) -> str:
    first = name.replace(os.sep, "/").partition("/")[0]
    return first.partition(".")[0] or first


def _ancestors(file: str) -> list[str]:
    """Returns the folders above a file in which Python has searched for modules."""
    finders = sys.path_importer_cache.copy().values()
    searched = {
        path.rstrip(os.sep)
        for path in (getattr(each, "path", "") for each in finders)
        if isinstance(path, str)
    }
    found, folder = [], os.path.dirname(file)
    while folder != os.path.dirname(folder):
        if folder in searched:
            found.append(folder)
        folder = os.path.dirname(folder)
    return found


@functools.lru_cache(maxsize=4096)
def _listed(folder: str, changed: int) -> frozenset[str]:
    """Returns the relative paths that the distributions in a folder list.

    Args:
        folder: the folder.
        changed: the time of its last change, with which what is remembered becomes outdated.
    """
    names: set[str] = set()
    try:
        for info in os.listdir(folder):
            if info.endswith(_INFO):
                names.update(_record(os.path.join(folder, info, "RECORD")))
    except OSError:
        return frozenset()
    return frozenset(names)


def _record(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            return [line.partition(",")[0] for line in lines]
    except OSError:
        return []
