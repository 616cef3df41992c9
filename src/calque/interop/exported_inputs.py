"""Checks that the arguments of a call are those that a program was exported for."""

from collections.abc import Mapping, Sequence
from typing import Any

from jax import Array, tree_util

Path = tuple[Any, ...]


def check(
    expected: Mapping[Path, Any], given: Mapping[Path, Array], names: Sequence[str] = ()
) -> None:
    """Compare the arrays of a call with the inputs of a program.

    Args:
        expected: the abstract value of each input, by its path in (args, kwargs).
        given: the array of each tensor of the call, likewise.
        names: those of the positional arguments, as far as they are known.

    Raises:
        ValueError: one is missing, or too many, or has another shape or dtype; names all of them.
    """
    wrong = [
        f"{_argument(path, names)} is missing: {_spoken(aval)}"
        for path, aval in expected.items()
        if path not in given
    ]
    wrong += [
        f"{_argument(path, names)} is not an input of the program"
        for path in given
        if path not in expected
    ]
    sizes: dict[str, tuple[int, str]] = {}
    for path, array in given.items():
        if path in expected:
            what = _difference(expected[path], array, _argument(path, names), sizes)
            wrong += [what] if what else []
    if wrong:
        inputs = ", ".join(f"{_short(path, names)}: {_spoken(a)}" for path, a in expected.items())
        raise ValueError("; ".join(wrong) + f".\nThe program was exported for ({inputs}).")


def _difference(aval: Any, array: Array, argument: str, sizes: dict[str, Any]) -> str | None:
    if aval.dtype != array.dtype:
        return f"{argument} is {array.dtype}, and the program takes {aval.dtype}"
    if len(aval.shape) != array.ndim:
        return f"{argument} has {array.ndim} dimensions, and the program takes {_spoken(aval)}"
    for dimension, (size, found) in enumerate(zip(aval.shape, array.shape)):
        where = f"dimension {dimension} of {argument}"
        if isinstance(size, int):
            if size != found:
                return f"{where} is {found}, and the program takes {size}"
            continue
        known = sizes.setdefault(str(size), (found, where))
        if known[0] != found:
            return f"{where} is {found}, and {known[1]}, the same size {size}, is {known[0]}"
    return None


def _spoken(aval: Any) -> str:
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


def _argument(path: Path, names: Sequence[str]) -> str:
    kind, first, *_ = _keys(path)
    within = tree_util.keystr(path[2:])
    if kind == 1:
        return f"argument {first}{within}"
    named = f" ({names[first]})" if first < len(names) else ""
    return f"argument {first}{within}{named}"
