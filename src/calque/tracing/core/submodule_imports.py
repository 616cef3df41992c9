"""Redirects imports of a package's submodules to another package.

An import of `ours.graph` returns the module `theirs.graph` itself, not a second copy: classes keep
their identity.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType


class _Aliases(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, ours: str, theirs: str, directory: str | None) -> None:
        self.ours, self.theirs, self.directory = ours, theirs, directory

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(self.ours + "."):
            return None
        inner = fullname.removeprefix(self.ours)
        if self.directory is not None:
            file = os.path.join(self.directory, *inner.split("."))
            if os.path.exists(file + ".py") or os.path.isdir(file):
                return None  # the usual finder loads our own files
        theirs = self.theirs + inner
        if importlib.util.find_spec(theirs) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=theirs)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns the entry of sys.modules, which a loader may replace.
        name = module.__name__
        sys.modules[name] = importlib.import_module(self.theirs + name.removeprefix(self.ours))


def install(ours: str, theirs: str, directory: str | None) -> None:
    """Import submodules that the package `ours` does not have from the package `theirs`.

    Args:
        ours: the name of a package, which is being imported.
        theirs: the name of the package that has the submodules.
        directory: where the files of `ours` are; None if it has none.
    """
    # It must come first: the usual finder would load a second copy through `__path__`.
    sys.meta_path.insert(0, _Aliases(ours, theirs, directory))
