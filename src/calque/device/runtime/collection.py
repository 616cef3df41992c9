"""JAX makes no tracebacks while Python 3.11 collects garbage.

JAX's extension gathers the frames of a traceback first and then allocates it. On Python 3.11 an
allocation may collect garbage there and then. If a finalizer uses JAX, which gathers frames for a
traceback of its own, code objects are released once too often, and the process crashes later,
anywhere. Python 3.12 and later collect garbage between instructions only.
"""

import gc
import sys
from typing import Any

from calque.upstream.jax_internals import extension

_were_enabled = True


def install() -> None:
    """Have the collector's callbacks turn tracebacks off and on again."""
    if sys.version_info < (3, 12) and hasattr(extension, "set_tracebacks_enabled"):
        gc.callbacks.append(_while_collecting)


def _while_collecting(phase: str, info: Any) -> None:
    global _were_enabled
    if phase == "start":
        _were_enabled = extension.tracebacks_enabled()
        extension.set_tracebacks_enabled(False)
    else:
        extension.set_tracebacks_enabled(_were_enabled)
