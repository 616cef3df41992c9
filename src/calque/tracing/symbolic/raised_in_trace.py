"""Exceptions of the traced program, which its graph raises on the same paths."""

import dis
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any

from calque.tracing.abstract import abstract_values
from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.core.origins import is_engine
from calque.tracing.proxies.proxy import has_proxy

if TYPE_CHECKING:
    from calque.tracing.symbolic.symbolic_tracer import SymbolicTracer

_TRACERS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SHAPES = abstract_values.__file__


class Raised:
    """An exception raised by the program's `raise` statement, which the graph module keeps.

    >>> Raised(ValueError("negative"))
    Raised(ValueError('negative'))
    """

    def __init__(self, error: Exception) -> None:
        self.error: Exception = error.with_traceback(None)
        self.error.__context__ = None

    def __fx_create_arg__(self, tracer: "SymbolicTracer") -> Any:
        names = (name for name, value in vars(tracer.root).items() if value is self)
        name = next(names, None)
        if name is None:
            name = tracer.get_fresh_qualname("_raised")
            tracer.keep(name, self)
        return tracer.create_node("get_attr", name, (), {})

    def is_like(self, error: Exception) -> bool:
        """Returns True if an exception is equivalent."""
        return type(error) is type(self.error) and repr(error) == repr(self.error)

    def __repr__(self) -> str:
        return f"Raised({self.error!r})"


def is_deliberate(error: Exception) -> bool:
    """Returns True if the program raised the error by `raise` or `assert`, in its own code or a
    library's, but not in code that computes shapes.
    """
    if isinstance(error, (SymbolicTraceError, NotImplementedError)) or has_proxy(error.args):
        return False
    last: TracebackType | None = error.__traceback__
    traced = False
    while last is not None:
        file = last.tb_frame.f_code.co_filename
        traced = (traced and is_engine(file)) or file == _SHAPES
        if last.tb_next is None:
            break
        last = last.tb_next
    if last is None or traced or last.tb_frame.f_code.co_filename.startswith(_TRACERS):
        return False
    return _opname(last.tb_frame.f_code, last.tb_lasti) == "RAISE_VARARGS"


def _opname(code: Any, offset: int) -> str:
    return dis.opname[code.co_code[offset]]
