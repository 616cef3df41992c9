"""Library settings that are stored in C, and read by a function without arguments."""

import types
from typing import Any

from calque.errors.handlers import is_of_handler
from calque.state.opaque import comparable
from calque.state.ownership import home_of_class
from calque.state.values import ATOMIC, MISSING

_BEGINNINGS = ("get", "is_", "are_", "preferred_", "initial_seed")
_ENDINGS = ("_enabled", "_allowed")
_HOMES = frozenset(("torch", "numpy", "sys", "decimal", "_decimal", "locale", "jax"))
_READERS = {
    "gc": ("isenabled", "get_debug"),
    "faulthandler": ("is_enabled",),
    "_socket": ("getdefaulttimeout",),
    "_tracemalloc": ("is_tracing", "get_traceback_limit"),
}
"""Other functions that return a setting, by their module."""
_OTHERWISE = frozenset(
    (
        *(
            "get_rng_state",
            "getrefcount",
            "getsizeof",
            "gettrace",
            "getprofile",
            "getdefaultlocale",
        ),
        *("get_device_module", "getframemodulename", "getallocatedblocks", "is_compiling"),
        *("get_asyncgen_hooks", "is_tensor", "is_storage"),
    )
)


def is_setting(value: object, name: str) -> bool:
    """Returns True if a value named by code is a function that may return a setting."""
    if not isinstance(value, types.FunctionType | types.BuiltinFunctionType):
        return False
    home = getattr(value, "__module__", None) or ""
    if home in _READERS:
        return value.__name__ in _READERS[home]
    if name in _OTHERWISE or not (name.startswith(_BEGINNINGS) or name.endswith(_ENDINGS)):
        return False
    return home.partition(".")[0] in _HOMES


def has_settings(value: object) -> bool:
    """Returns True if an object's attributes are settings of PyTorch, stored in C."""
    return home_of_class(type(value)).startswith("torch.backends") and not isinstance(
        value, types.ModuleType | type
    )


def setting_of(getter: Any) -> Any:
    """Returns the function's result as plain values; MISSING if it is not a setting."""
    try:
        value = comparable(getter())
    except Exception as error:  # it needs arguments or fails, so it is not a setting
        if is_of_handler(error):
            raise
        return MISSING
    return value if _is_plain(value) else _of_attributes(value)


def _of_attributes(value: object) -> Any:
    """Returns a setting that is an object with plain attributes,
    such as the context of `decimal`.
    """
    try:
        found = comparable(value.__reduce_ex__(4)[1])
    except Exception as error:
        if is_of_handler(error):
            raise
        return MISSING
    return tuple(item for item in found if _is_plain(item)) or MISSING


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return type(value) in ATOMIC
