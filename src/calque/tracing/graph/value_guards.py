"""Values that a program read from its tensors, which a graph checks when it runs."""

import math
from typing import Any

import numpy as np
import torch

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph.checks import recorded

AUTOGRAD = frozenset(("requires_grad", "is_leaf", "grad", "grad_fn", "retains_grad"))
"""Properties of a tensor that depend on whether gradients are recorded."""

HOST = frozenset(("tolist", "numpy", "__array__", "__dlpack__", "__repr__", "__format__"))
"""Methods that read a tensor's elements without an operator."""

RETURNED = "calque.returned"
"""In the metadata of a node that returned a tensor in the run that was made before: the name of the
node that made it."""


class Answer:
    """A value that the program read, kept by the graph as it was."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return described(self.value)


def described(value: object) -> str:
    """Returns the text of a value for messages."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}{list(value.shape)}"
    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def answer_of(name: str, value: object) -> Any:
    """Returns what a guard compares: a copy of the answer, or its relevant part.

    Raises:
        NotImplementedError: it cannot be compared.
    """
    if name == "grad_fn":
        return value is None
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (tuple, list)):
        return type(value)(answer_of("", part) for part in value)  # pyright: ignore[reportCallIssue]
    plain = (bool, int, float, complex, str, bytes, type(None), np.generic, torch.dtype)
    if isinstance(value, (*plain, torch.device, torch.layout, torch.memory_format)):
        return value
    raise NotImplementedError(type(value))


def same_answer(a: Any, b: Any) -> bool:
    """Returns True if two answers are the same, to the bit; every nan is equal to every other.

    >>> same_answer(float("nan"), float("nan")), same_answer(1, 1.0), same_answer([0.0], [-0.0])
    (True, False, False)
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        same = a.dtype == b.dtype and a.shape == b.shape
        return same and bool(((a == b) & _same_signs(a, b) | ((a != a) & (b != b))).all())
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same_answer, a, b))
    if isinstance(a, complex):
        return same_answer(a.real, b.real) and same_answer(a.imag, b.imag)
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    return bool(a == b)


def _same_signs(a: np.ndarray, b: np.ndarray) -> Any:
    """Returns where the signs of two arrays agree, including the signs of zeros."""
    if a.dtype.kind == "c":
        return _same_signs(a.real, b.real) & _same_signs(a.imag, b.imag)
    return np.signbit(a) == np.signbit(b) if a.dtype.kind == "f" else True


@recorded
def expect_answer(value: object, expected: Answer, what: str, origin: str) -> None:
    """Checks that the program reads the same value here as when it was recorded.

    Raises:
        TraceError: the value differs, so the program might take a different path.
    """
    try:
        found = answer_of(what, value)
        same = same_answer(found, expected.value)
    except NotImplementedError:
        found, same = value, False
    if not same:
        other = "another, " if described(found) == repr(expected) else ""
        raise SymbolicTraceError(
            f"{origin}: {what} gave {expected} when this was recorded, but gives "
            f"{other}{described(found)} now; a recording is valid only for the values it has "
            "seen.\n"
            "Record again with these inputs, or keep the value a tensor."
        )


@recorded
def number_of_parts(value: Any) -> int:
    """Returns how many parts a result has; recorded as a node if the graph's code is traced again.

    >>> number_of_parts((1, 2))
    2
    """
    return len(value)


@recorded
def expect_one(a: object, b: object, names: str) -> None:
    """Checks that two inputs are the same tensor, as they were when the program was recorded.

    Raises:
        TraceError: they are different tensors.
    """
    if a is not b:
        raise SymbolicTraceError(
            f"recorded with one tensor for {names}, called with two.\n"
            "Record again with two tensors."
        )


@recorded
def expect_itself(value: object, argument: object, what: str, origin: str) -> None:
    """Checks that a call returns the tensor that it was passed itself, as when it was recorded.

    Raises:
        TraceError: it returns a different one, so a write to one would not change the other.
    """
    if value is not argument:
        raise SymbolicTraceError(
            f"{origin}: {what} returned the tensor that it was passed when this was recorded, but "
            "returns another one now, and the program writes to it.\n"
            "Record again with these inputs, or write to a clone() of the tensor."
        )


OF_RECORDINGS = frozenset((expect_answer, expect_one, expect_itself))
"""The checks of recordings."""
