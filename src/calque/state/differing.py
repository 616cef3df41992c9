"""Builtin functions whose results differ from call to call."""

from types import BuiltinFunctionType

_CLOCKS = (
    *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
    *("process_time", "process_time_ns", "thread_time", "thread_time_ns", "clock_gettime"),
    *("clock_gettime_ns", "localtime", "gmtime", "ctime", "strftime", "asctime"),
)
_SYSTEM = (
    *("urandom", "getrandom", "getpid", "times", "stat", "lstat", "fstat", "access", "readlink"),
    *("getcwd", "getloadavg", "cpu_count", "read", "get_terminal_size", "getppid"),
)
_DIFFERING = {
    "time": frozenset(_CLOCKS),
    "posix": frozenset(_SYSTEM),
    "nt": frozenset(_SYSTEM),
    "builtins": frozenset(("input",)),
    "datetime": frozenset(("now", "utcnow", "today")),
    "date": frozenset(("today",)),
    "_uuid": frozenset(("generate_time_safe", "UuidCreate")),
    "gc": frozenset(("get_count", "get_stats")),
}
"""The names by their module or class."""


def home_of(function: BuiltinFunctionType) -> str:
    """Returns the module or the class of a builtin function."""
    owner = function.__self__
    return getattr(owner, "__name__", type(owner).__name__)


def differs(function: object) -> bool:
    """Returns True if a function's results differ from call to call.

    >>> import time
    >>> differs(time.time), differs(len)
    (True, False)
    """
    if not isinstance(function, BuiltinFunctionType):
        return False
    names = _DIFFERING.get(home_of(function))
    return names is not None and function.__name__ in names


NAMES: frozenset[str] = frozenset(name for names in _DIFFERING.values() for name in names)
"""All of the names."""
