"""Generates the lines that compare the placements of arrays, with one comparison for the
arguments.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from calque.device.runtime.executable import OnDevices, sharding_of
from calque.device.runtime.placement import placements_of, spread
from calque.jitting.generated.source import LEAVE, GeneratedFunction
from calque.program.pinning import PlacementGuard
from calque.program.sources import CellSource

if TYPE_CHECKING:
    from calque.jitting.program import JittedProgram


class _OfArguments:
    """The placements of the arguments of a call.

    Args:
        tensors: example arguments.

    Attributes:
        seen: the shardings of the arrays whose placements were last found to be the same.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        arrays = _arrays_of(tensors)
        self._placements = placements_of(arrays)
        self.seen: list[Any] = list(map(sharding_of, arrays))

    def hold(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Returns True if the arguments of a call have these placements."""
        arrays = _arrays_of(tensors)
        if placements_of(arrays) != self._placements:
            return False
        self.seen = list(map(sharding_of, arrays))
        return True


class _OfArrays:
    """The placements of all arrays that are passed to a program.

    Args:
        guards: the guards of the placements of the state.
        execute: executes the program.

    Attributes:
        seen: the shardings of the arrays when they were last found to be right; empty if some
            arrays must be moved in each call.
    """

    def __init__(self, guards: Sequence[PlacementGuard], execute: OnDevices) -> None:
        self._guards = guards
        self._execute = execute
        self.seen: list[Any] = []

    def hold(self, arrays: list[Any]) -> bool:
        """Returns True if the program can be used; moves arrays in the list to its devices."""
        if not all(guard.holds() for guard in self._guards):
            return False
        found = list(map(sharding_of, arrays))
        self.seen = [] if self._execute.move(arrays, found) else found
        return True


def _arrays_of(tensors: Sequence[torch.Tensor]) -> list[Any]:
    return [one.untyped_storage().cell.array for one in tensors]  # type: ignore[attr-defined]


def write_placements(
    source: GeneratedFunction, args: Sequence[torch.Tensor], cells: Sequence[str]
) -> None:
    """Write the lines that leave if an argument has a different placement.

    Args:
        source: the source of a function with the parameter `args`.
        args: example arguments.
        cells: the names of their cells.
    """
    if not spread.exists:
        source.line(f"if {{}}.exists: {LEAVE}", spread)
    elif args:
        own = _OfArguments(args)
        found = ", ".join(f"{cell}.array.sharding" for cell in cells)
        source.line(f"if [{found}] != {{}}.seen and not {{}}(args): {LEAVE}", own, own.hold)


def guards_of_inputs(program: "JittedProgram") -> list[PlacementGuard]:
    """Returns the guards that concern only arrays passed to a program over several devices, which
    can be compared together with these (see `write_arrays`).
    """
    if not spread.exists or not isinstance(_execute(program), OnDevices):
        return []
    sources = (one.source for one in program.passed)
    inputs = {source.cell for source in sources if isinstance(source, CellSource)}
    guards = (one for one in program.guards if isinstance(one, PlacementGuard))
    return [guard for guard in guards if inputs.issuperset(guard.cells)]


def write_arrays(source: GeneratedFunction, program: "JittedProgram") -> Any:
    """Write the lines that leave if one of the `arrays` has a different placement.

    Returns:
        The function that executes the program with these arrays.
    """
    execute = _execute(program)
    if not spread.exists or not isinstance(execute, OnDevices):
        return execute
    held = _OfArrays(guards_of_inputs(program), execute)
    line = f"if [*map({{}}, arrays)] != {{}}.seen and not {{}}(arrays): {LEAVE}"
    source.line(line, sharding_of, held, held.hold)
    return execute.execute


def _execute(program: "JittedProgram") -> Any:
    bare = program.execution.bare
    return None if bare is None else bare.execute
