"""A module of a user's: values that functions of other modules read."""

import types

scale = 2.0
options = types.SimpleNamespace(gain=2.0)


def scaled(x):
    """`x` by a global of this module."""
    return x * scale


def value_or(x, default):
    """The value of `x`, if it has one."""
    try:
        return x.item()
    except Exception:
        return default
