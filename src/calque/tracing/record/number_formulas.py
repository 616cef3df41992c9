"""How a program computes numbers from values that it read from tensors, and where it uses them."""

from collections.abc import Callable
from typing import Any, NamedTuple

from calque.tracing.core.statements import Place


class Formula(NamedTuple):
    """A number of the program, and how it is computed.

    Attributes:
        function, parts: the function that computes it and its arguments; for a constant, None and
            the constant.
        read: the position of the call that reads it, if it is read from a tensor.
    """

    function: Callable[..., Any] | None = None
    parts: tuple[Any, ...] = ()
    read: Place | None = None

    def reads(self) -> set[Place]:
        """The source positions of the reads that it is computed from."""
        if self.read is not None:
            return {self.read}
        return set().union(*(p.reads() for p in self.parts if isinstance(p, Formula)))


class Use(NamedTuple):
    """The use of a number in an argument of a call: the argument's position or name, and the path
    to the number within the argument.
    """

    formula: Formula
    position: int | str
    path: tuple[int | str, ...] = ()


class NumberUse(NamedTuple):
    """An expression of the program that computes with numbers that were read.

    Attributes:
        name: the name of the function, if it is called by name; "" for an operator.
        count: the number of positional arguments in the source.
        uses: the uses of numbers in it.
    """

    name: str
    count: int
    uses: list[Use]


class NumberUses(NamedTuple):
    """The uses of the numbers that a function reads.

    Attributes:
        reads: for each call that reads a number that does not escape, by its position, the sites
            that use the number.
        sites: the sites, by their positions.
        names: the values that global names must have for this to hold.
    """

    reads: dict[Place, set[Place]]
    sites: dict[Place, NumberUse]
    names: dict[str, Any]
