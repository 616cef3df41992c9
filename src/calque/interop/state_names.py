"""Checks that the arrays of a call are those of a module, by their names."""

from collections.abc import Container, Mapping
from typing import Any


def check(kind: str, given: Any, names: Mapping[str, int], elsewhere: Container[str] = ()) -> None:
    """Compare names that are given with those that a module has.

    Args:
        kind: what the argument is called.
        given: a dict, whose keys are compared.
        names: the module's names, each with the identity of what it has: of two names for one
            thing, one is enough.
        elsewhere: names that belong into the argument `buffers`.

    Raises:
        TypeError: it is not a dict.
        RuntimeError: names are missing, or there are others.
    """
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{kind} must be a dict with the keys of state_dict(), not {type(given).__name__}"
        )
    found = {names[name] for name in given if name in names}
    missing = [name for name, one in names.items() if one not in found]
    unknown = [str(name) for name in given if name not in names]
    wrong = [f"{kind} lacks {', '.join(missing)}"] if missing else []
    if unknown:
        wrong.append(f"the module has no {', '.join(unknown)} among its {_described(kind)}")
    if any(name in elsewhere for name in unknown):
        wrong.append("pass buffers as `buffers=`")
    if wrong:
        raise RuntimeError(
            "; ".join(wrong)
            + ".\nPass the dict that calque.functional returned, or one with the same keys and "
            "other values."
        )


def _described(kind: str) -> str:
    return "parameters" if kind == "params" else kind
