"""Checks that the arguments of a call fit an exported program."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jax import Array, tree_util

Path = tuple[Any, ...]


def check(
    expected: Mapping[Path, Any], given: Mapping[Path, Array | None], names: Sequence[str] = ()
) -> None:
    """Compare the arguments of a call with the inputs of a program.

    Args:
        expected: the abstract value of each input, by its path in (args, kwargs); None for Python
            values, which are part of the program.
        given: the array of each tensor of the call, likewise, and None for Python values.
        names: the names of the positional arguments, if known.

    Raises:
        ValueError: an argument is missing, unexpected, or has the wrong shape or dtype; the message
            names all of them.
    """
    wrong = [
        f"{named(path, names)} is missing: {_described(aval)}"
        for path, aval in expected.items()
        if path not in given
    ]
    wrong += [
        f"{named(path, names)} is not an input of the program"
        for path in given
        if path not in expected
    ]
    wrong += [
        f"{named(path, names)} is part of the program, not an input of it: pass None"
        for path, array in given.items()
        if array is not None and expected.get(path, array) is None
    ]
    sizes: dict[str, tuple[int, str]] = {}
    for path, array in given.items():
        if array is None and expected.get(path) is not None:
            wrong.append(f"{named(path, names)} is missing: {_described(expected[path])}")
        elif array is not None and expected.get(path) is not None:
            what = _difference(expected[path], array, named(path, names), sizes)
            wrong += [what] if what else []
    if wrong:
        raise ValueError("; ".join(wrong) + f".\n{_as_text(expected, names)}.")


def explained(
    error: ValueError,
    expected: Mapping[Path, Any],
    given: Mapping[Path, Array | None],
    names: Sequence[str] = (),
) -> ValueError:
    """Rewrites JAX's error for sizes that do not fit, in terms of the arguments.

    Args:
        error: JAX's error.
        expected, given, names: as for `check`, which found no error.
    """
    if not str(error).startswith("Input shapes do not match"):
        return error
    constraint = re.search("symbolic shape constraint (.+?)\\. Expected", str(error))
    what = constraint[1] if constraint else "every symbol at least 1"
    dynamic = [
        f"dimension {dimension} of {named(path, names)} is {array.shape[dimension]}"
        for path, array in given.items()
        if array is not None
        for dimension, size in enumerate(expected[path].shape)
        if not isinstance(size, int)
    ]
    return ValueError(f"{', '.join(dynamic)}.\n{_as_text(expected, names)}, with {what}.")


def _as_text(expected: Mapping[Path, Any], names: Sequence[str]) -> str:
    found = expected.items()
    inputs = ", ".join(
        f"{_short(path, names)}: {_described(a)}" for path, a in found if a is not None
    )
    return f"The program was exported for ({inputs})"


def _difference(aval: Any, array: Array, argument: str, sizes: dict[str, Any]) -> str | None:
    if aval.dtype != array.dtype:
        return f"{argument} is {array.dtype}, but the program takes {aval.dtype}"
    if len(aval.shape) != array.ndim:
        return f"{argument} has {array.ndim} dimensions, but the program takes {_described(aval)}"
    for dimension, (size, found) in enumerate(zip(aval.shape, array.shape)):
        where = f"dimension {dimension} of {argument}"
        if isinstance(size, int):
            if size != found:
                return f"{where} is {found}, but the program takes {size}"
            continue
        known = sizes.setdefault(str(size), (found, where))
        if known[0] != found:
            return (
                f"{where} is {found}, but {known[1]}, which has the same size {size}, is {known[0]}"
            )
    return None


def _described(aval: Any) -> str:
    if aval is None:
        return "the Python value that it was exported with, or None"
    return f"{aval.dtype}[{', '.join(map(str, aval.shape))}]"


def _keys(path: Path) -> list[Any]:
    return [
        getattr(step, "idx", getattr(step, "key", getattr(step, "name", step))) for step in path
    ]


def _short(path: Path, names: Sequence[str]) -> str:
    kind, first, *_ = _keys(path)
    within = tree_util.keystr(path[2:])
    if kind == 1:
        return f"{first}{within}"
    return f"{names[first] if first < len(names) else first}{within}"


def named(path: Path, names: Sequence[str]) -> str:
    """Returns a description of an argument."""
    kind, first, *_ = _keys(path)
    within = tree_util.keystr(path[2:])
    if kind == 1:
        return f"argument {first}{within}"
    named = f" ({names[first]})" if first < len(names) else ""
    return f"argument {first}{within}{named}"
