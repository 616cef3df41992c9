"""`Differences`: the result of a comparison; the first is usually the cause of the rest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, overload

from torch.fx.node import Node

from calque.errors.printable import printable
from calque.tracing.core.origins import NodeOrigin

Kind = Literal["structure", "shape", "dtype", "values", "error"]
_SHOWN = 5


@dataclass(frozen=True)
class Difference:
    """One place where two graphs disagree.

    Attributes:
        kind: `"structure"`: different calls, or the same call with different arguments; `"shape"`,
            `"dtype"` and `"values"`: of a node's result; `"error"`: one of the two raises here.
        what: a description.
        a, b: the nodes; None if a graph has no node here, or for the result as a whole.
        origin: the line of the program; None if neither graph knows it.
        max_abs, max_rel: the greatest absolute and relative error, if values differ.
    """

    kind: Kind
    what: str
    a: Node | None = None
    b: Node | None = None
    origin: NodeOrigin | None = None
    max_abs: float | None = None
    max_rel: float | None = None

    @property
    def path(self) -> str:
        """The path of the module whose forward contains it; "" for the root."""
        return self.origin.module if self.origin is not None else ""

    def __str__(self) -> str:
        nodes = [f"{node.name} in {side}" for node, side in ((self.a, "a"), (self.b, "b")) if node]
        place = str(self.origin) if self.origin is not None else "somewhere"
        text = self.origin.text if self.origin is not None else ""
        lines = [f"{self.kind}: {place}", f"    {text}" if text else ""]
        lines.append(f"  {' and '.join(nodes)}: {self.what}" if nodes else f"  {self.what}")
        return "\n".join(printable(line) for part in lines for line in part.split("\n") if line)


@dataclass
class Differences(Sequence[Difference]):
    """Where two graphs disagree, in the order of the first graph; true if they disagree anywhere.

    Attributes:
        compared: how many pairs of nodes were compared by their values.
        found: the differences.
    """

    compared: int = 0
    found: list[Difference] = field(default_factory=list)

    @property
    def first(self) -> Difference | None:
        """The first place where they disagree; None if they agree."""
        return self.found[0] if self.found else None

    def of(self, *kinds: Kind) -> list[Difference]:
        """Returns the differences of the given kinds.

        >>> Differences(0, [Difference("shape", "(2,) and (3,)")]).of("values", "dtype")
        []
        """
        return [difference for difference in self.found if difference.kind in kinds]

    @overload
    def __getitem__(self, index: int) -> Difference: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Difference]: ...

    def __getitem__(self, index: int | slice) -> Difference | Sequence[Difference]:
        return self.found[index]

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[Difference]:
        return iter(self.found)

    def __str__(self) -> str:
        compared = f"the values of {self.compared} nodes compared" if self.compared else ""
        if not self.found:
            return "no difference" + (f"; {compared}" if compared else " in structure")
        lines = ["the first difference:", str(self.found[0])]
        rest = self.found[1:]
        lines += ["then:"] if rest else []
        lines += [_indented(str(difference)) for difference in rest[:_SHOWN]]
        lines += [f"  and {len(rest) - _SHOWN} more"] if len(rest) > _SHOWN else []
        return "\n".join([*lines, compared] if compared else lines)

    __repr__ = __str__


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
