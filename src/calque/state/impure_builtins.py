"""Builtin functions whose results differ from call to call, or that do something in C."""

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

_SETTINGS = {
    "atexit": ("register", "unregister"),
    "faulthandler": ("enable", "disable"),
    "gc": ("enable", "disable", "freeze", "unfreeze", "set_debug", "set_threshold")
    + ("get_threshold",),  # calque raises it during a trace
    "SimpleQueue": ("get", "get_nowait", "put", "put_nowait"),
    "posix": ("kill", "killpg", "nice", "umask"),
    "resource": ("getrlimit", "getrusage", "setrlimit"),
    "sys": ("setrecursionlimit", "setswitchinterval", "set_int_max_str_digits")
    + ("addaudithook", "audit", "set_asyncgen_hooks", "setdlopenflags", "setprofile", "settrace"),
    "time": ("tzset",),
    "_codecs": ("register", "unregister"),
    "_csv": ("field_size_limit", "list_dialects", "register_dialect", "unregister_dialect"),
    "_locale": ("localeconv",),  # `strptime` calls `setlocale` to ask for the locale
    "_signal": ("alarm", "getitimer", "getsignal", "pthread_sigmask", "setitimer", "signal")
    + ("pthread_kill", "raise_signal", "set_wakeup_fd", "siginterrupt", "sigpending"),
    "_socket": ("setdefaulttimeout",),
    "_thread": ("interrupt_main",),
    "_tracemalloc": ("start", "stop"),
}
"""What they do changes no state that could be compared, or changed again by each call."""
_ALL = {
    home: frozenset((*_DIFFERING.get(home, ()), *_SETTINGS.get(home, ())))
    for home in _DIFFERING.keys() | _SETTINGS.keys()
}


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
    names = _ALL.get(home_of(function))
    return names is not None and function.__name__ in names


NAMES: frozenset[str] = frozenset(name for names in _DIFFERING.values() for name in names)
"""The names of those whose results differ."""
