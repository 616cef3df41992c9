"""Errors for code that needs the value of a traced number."""

from calque.errors import TraceError, unrepeatable

Place = tuple[int, str]
"""The origin of a number: the id of a dict, and the key."""


class NumberNeeded(BaseException):
    """Signals that numbers must be concrete, so the function is traced again without making them
    inputs.

    Attributes:
        places: the origins of these numbers.
    """

    def __init__(self, places: "frozenset[Place] | set[Place]") -> None:
        super().__init__()
        self.places: frozenset[Place] = frozenset(places)


class GivenNumberNeeded(BaseException):
    """Signals that numbers among the arguments must be compared, so they are part of the signature.

    Attributes:
        indexes: the indexes of the arguments.
    """

    def __init__(self, indexes: set[int]) -> None:
        super().__init__()
        self.indexes: set[int] = indexes


def turned_into_float(stepping: str | None) -> TraceError:
    """Returns the error for code that needs the value of a tensor as a Python float.

    Args:
        stepping: the name of the optimizer whose step needs it; None for the function's own code.
    """
    if stepping is not None:
        return unrepeatable(
            f"{stepping}.step() turns a number that it has read from a tensor into a Python float",
            "inside calque.jit, where it has no value",
            f"Run {stepping} eagerly: leave its step() out of the jitted function, and keep the "
            "loss and its backward() in it.",
        )
    return unrepeatable(
        "a number that was read from a tensor is turned into a Python float",
        "inside calque.jit, where it has no value",
        "Compute with the tensor, or read it outside the jitted function.",
    )


def unknown_value() -> float:
    """Raise the error for a number whose value cannot be read."""
    raise unrepeatable(
        "the value of a tensor is read as a Python number and compared",
        "inside calque.jit, where it has none yet",
        "Use torch.where or torch.cond.",
    )
