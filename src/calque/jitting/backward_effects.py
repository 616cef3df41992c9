"""Refuses side effects in the backward pass of results, which runs outside the program, after the
call.

It is traced once, with the function, and later replayed without its Python code. So changes by this
code (in hooks, and in functions with their own backward) would be lost, and values from iterators
and random generators would be frozen.
"""

import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any

from jax import Array

from calque.device.memory.cell import Cell
from calque.errors import TraceError, noting_refusals, unrepeatable
from calque.program.gradients.differentiable import Backward
from calque.program.gradients.graph_boundary import is_leaf
from calque.program.lifting import Lifting
from calque.program.trace_collection import collect_new
from calque.state import Row, same_value
from calque.state.names import names_of
from calque.state.ownership import Owner
from calque.state.rows import CacheRow
from calque.state.values import same_keys

if TYPE_CHECKING:
    from calque.jitting.tracing import JitTrace

_WHY = "by the backward pass of a result, which runs outside the compiled program"
_REMEDY = "Call backward() in the jitted function as well."
_UNDEFINED = "set_materialize_grads"
"""The method by which a function asks to be told of results that have no gradient."""


class BackwardEffects:
    """The changes made while the backward pass of results is traced.

    Args:
        trace: the trace, whose function has returned.
    """

    def __init__(self, trace: "JitTrace") -> None:
        self._known = trace.known
        self._lifting = trace.lifting
        self._snapshot = trace.state.snapshot
        self._unrepeatable = trace.state.unrepeatable
        self._ran = len(self._snapshot.codes)

    @contextmanager
    def refused(self) -> Iterator[None]:
        """A context manager for tracing the backward pass.

        Raises:
            TraceError: it changes state, or reads from an iterator or random generator.
        """
        noted = len(self._snapshot.unrepeatable)
        before: dict[int, Any] = {}  # the function's own changes, which are allowed
        for row, now in self._snapshot.changed():
            before[id(row)] = now if _are_same(now, row.items()) else None  # nothing to compare
        with noting_refusals() as refusals, _without_writes(self._lifting):
            yield
        if refusals:  # which the code caught
            raise refusals[0]
        for row, now in list(self._snapshot.changed()):
            then = before.get(id(row), {})
            if then is not None and not _are_same(then, now):
                self._check(row, now)
        for key, tensor in self._known.tensors.items():
            if is_leaf(tensor) and tensor.grad is not self._known.before[key].gradient:
                tensor.grad = self._known.before[key].gradient
                raise TraceError(f"{self._place()}.grad of a tensor is set {_WHY}.\n{_REMEDY}")
        self._unrepeatable += self._snapshot.unrepeatable[noted:]

    def _check(self, row: Row, now: dict[Any, Any]) -> None:
        """Refuse the change of a row, unless it is allowed."""
        if not row.restored:  # a library's private state
            row.guarded = False
            return
        if isinstance(row, CacheRow):  # the next call would find the entries
            self._unrepeatable.append(f"{row.path} is filled by the backward pass of a result")
            return
        changed = row.difference(now)
        what = str(row.path) if changed is None else row.name(changed[0])
        row.restore()
        place = self._place(None if changed is None else changed[0])
        raise TraceError(f"{place}{what} is changed {_WHY}.\n{_REMEDY}")

    def check_nothing_stays(self, before: Collection[weakref.ref[Cell]]) -> None:
        """Check that no tensor created by the backward pass is kept.

        Args:
            before: the cells that the function has created.

        Raises:
            TraceError: one is kept.
        """
        known = set(map(id, before))
        made = [ref for ref in self._lifting.fresh.values() if id(ref) not in known]
        if any(ref() is not None for ref in made):
            collect_new()
        for ref in made:
            cell = ref()
            if cell is not None:
                raise TraceError(
                    f"{self._place()}a tensor of shape {cell.array.shape} is made and kept (in a "
                    f"cache, say) {_WHY}.\n{_REMEDY} Or make the tensor before the backward pass."
                )

    def expect_whole(self, backward: Backward | None) -> None:
        """Let results that share a function whose backward asks which of them have a gradient go
        backward together: what it does for some of them was not traced.
        """
        if not any(_UNDEFINED in names_of(code).words for code in self._snapshot.codes):
            return
        for part in backward.parts if backward is not None else ():
            if len(part.results) > 1:
                part.whole = (
                    f"{self._place(_UNDEFINED)}only some results of a jitted function have gone "
                    f"backward, and a function with its own backward calls ctx.{_UNDEFINED}(False) "
                    "there: what it does for the others was traced with gradients for all.\n"
                    f"{_REMEDY} Or return only what goes backward."
                )

    def _place(self, key: object = None) -> str:
        """Returns where the user's code that ran begins; first that which names a key."""
        codes = list(self._snapshot.codes.items())
        own = [c for c, owner in codes if owner is Owner.USER and not c.co_filename.startswith("<")]
        new = [c for c, _ in codes[self._ran :] if c in own]
        naming = [c for c in (*new, *own) if isinstance(key, str) and key in names_of(c).words]
        code: CodeType | None = next(iter((*naming, *new)), None)
        return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}: "


@contextmanager
def _without_writes(lifting: Lifting) -> Iterator[None]:
    """A context manager that refuses writes to tensors from outside."""

    def refuse(cell: Cell, array: Array) -> None:
        raise unrepeatable(
            f"a tensor of shape {array.shape} from outside of the backward pass is written to",
            _WHY,
            _REMEDY,
        )

    before: Callable[[Cell, Array], None] | None = lifting.on_write
    lifting.on_write = refuse
    try:
        yield
    finally:
        lifting.on_write = before


def _are_same(before: dict[Any, Any], now: dict[Any, Any]) -> bool:
    return same_keys(before, now) and all(same_value(now[key], before[key]) for key in now)
