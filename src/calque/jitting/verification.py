"""Checks that a function repeats, by a second trace and by counting traces.

A program is reused while the state that its function reads is unchanged. This relies on finding all
of this state. As a safety net, the function is traced again at the second call; if no guard has
found a change, this must give the same program.
"""

import inspect
from collections.abc import Callable
from typing import Any

from calque.device.runtime.threads import present
from calque.errors import RetraceWarning
from calque.errors.warning import warn_of_function
from calque.jitting import program_text
from calque.jitting.alias_guards import cells_in
from calque.jitting.copied_counts import agree
from calque.jitting.implicit_arguments import form
from calque.jitting.program import JittedProgram
from calque.program import signature
from calque.program.results import Constant
from calque.program.structures import Structure
from calque.program.trees import is_tensor
from calque.state import ATOMIC, same_value

_STREAK = 6
_MAX_CALLS = 8
"""The number of calls at which a second trace may be postponed."""
_REMEDY = (
    "Each call takes as long as a trace. Do that step outside the jitted function and pass its "
    "result, or keep the number in a tensor."
)
_OBJECTS = (
    "Each call takes as long as a trace, because a program is made for each object. Pass a dict "
    "of its contents, or register its class with `torch.utils._pytree.register_pytree_node` or "
    "`jax.tree_util.register_dataclass`."
)


def takes_keywords(fn: Any) -> bool:
    """Returns True if a function has `**kwargs`, and so can observe the order of keywords."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


class Fingerprint:
    """The results of a trace, in comparable form."""

    def __init__(self, program: JittedProgram, lowered: Any, leaves: list[Any]) -> None:
        self._layouts = list(map(form, filter(is_tensor, leaves)))
        self._text = lowered.as_text()
        self._constants = [
            one.value if type(one.value) in ATOMIC else None
            for one in program.recording.results
            if isinstance(one, Constant)
        ]
        self._appended = program.recording.effects.appended
        self._implicit = program.recording.implicit
        self._sharing = program.recording.sharing

    def fits(self, leaves: list[Any]) -> bool:
        """Returns True if arguments have the same positions in their storages, and the same tensors
        share memory; if not, the inputs may differ.
        """
        if self._layouts != list(map(form, filter(is_tensor, leaves))):
            return False
        found = [leaf for source in self._implicit for leaf in source.find(leaves) or ()]
        alone = cells_in(found).isdisjoint(cells_in(leaves))
        return alone and signature.arrangement(found) == self._sharing

    def difference(self, other: "Fingerprint") -> str | None:
        """Returns the first difference; None if there is none."""
        if not same_value(tuple(self._constants), tuple(other._constants)):
            return (
                f"it returns {tuple(self._constants)} at first, and then {tuple(other._constants)}"
            )
        if not agree(self._appended, other._appended, same_value):
            return f"it appends {self._appended} at first, and then {other._appended}"
        found = program_text.difference(self._text, other._text)
        if found is None:
            return None
        before, now = map(_short, found)
        return f"`{before}` in the first trace becomes `{now}` in the second"


def _short(line: str) -> str:
    line = line.strip()
    return line if len(line) < 120 else line[:117] + "..."


class Repeating:
    """Tracks whether the traces of a jitted function are the same.

    Attributes:
        differing: signatures whose calls differ without a guard that fails, which are always
            traced.
    """

    def __init__(self, fn: Callable[..., Any], verify: bool) -> None:
        self._fn = fn
        self._verify = verify
        self._unverified: dict[int, Fingerprint] = {}
        self._streak: tuple[Any, int] = (None, 0)
        self._warned = False
        self.differing: set[Any] = set()

    def made(
        self, key: Any, program: JittedProgram, lowered: Any, leaves: list[Any], reason: str
    ) -> None:
        """Record that a program was traced for a call's leaves, because of `reason`."""
        if self._verify and program.assumed is None and not program.single_use:
            found = Fingerprint(program, lowered, leaves)
            first = next(iter(self._unverified.values()), None)
            # The same program with flattened arguments or other numbers, so two traces agree.
            found_in = program.recording
            again = isinstance(key[0], Structure) or found_in.copied or found_in.numbers
            opened = first if again else None
            program.unverified = opened is None or opened.difference(found) is not None
            self._unverified = {id(program): found} if program.unverified else {}
        changes = program.single_use or program.recording.effects or program.recording.rebound
        before, count = self._streak
        another = before is not None and signature.differ_by_objects(before, key)
        if not changes and not another:  # the difference is due to code outside
            self._streak = (key, 0)
            return
        self._streak = key, count + 1 if another or before == key else 1
        if self._streak[1] >= _STREAK:
            found = program.recording.unrepeatable
            self.warn(found[0] if found else reason, _OBJECTS if another else _REMEDY)

    @property
    def warns(self) -> bool:
        """Returns True if this class has warned, or will warn, that the function is traced in each
        call.
        """
        return self._warned or self._streak[1] > 1

    def is_due(self, program: JittedProgram, leaves: list[Any]) -> bool:
        """Returns True if a program must be compared with a second trace in this call."""
        first = self._unverified.get(id(program))
        if first is None or program.calls > _MAX_CALLS:
            program.unverified = False
            return False
        return first.fits(leaves)

    def served(self) -> None:
        """Record that a program has served another call."""
        self._streak = (None, 0)

    def differs(self, program: JittedProgram, again: JittedProgram, lowered: object) -> bool:
        """Returns True if a second trace gave a different program."""
        first = self._unverified.get(id(program))
        return first is not None and first.difference(Fingerprint(again, lowered, [])) is not None

    def compare(
        self, key: object, program: JittedProgram, again: JittedProgram, lowered: object
    ) -> bool:
        """Returns True if a second trace gave the same program, or cannot be compared."""
        if again.recording.survivors and len(present) > 1:
            # Another thread may have read the state during the trace.
            return True
        program.unverified = False
        first = self._unverified.pop(id(program), None)
        if first is None:
            return True
        found = again.recording.unrepeatable
        difference = found[0] if found else first.difference(Fingerprint(again, lowered, []))
        if difference is None:
            return True
        self.differing.add(key)
        self.warn(difference)
        return False

    def warn(self, why: str, remedy: str = _REMEDY) -> None:
        """Warn once that the function is traced in each call."""
        if self._warned:
            return
        self._warned = True
        said = f"is traced at each call: {why}.\n{remedy}"
        warn_of_function(self._fn, said, RetraceWarning)
