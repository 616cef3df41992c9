"""Generated functions for calls with the same kinds of tensors as the last call.

The general path flattens a call's arguments as pytrees, looks up its signature and checks the
programs that it finds. Most calls are like the previous one, with only tensors as arguments. For
these, a function is generated that makes the same comparisons; other calls take the general path.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from calque.device.runtime.placement import spread
from calque.jitting.generated.arguments import (
    cells,
    write_arguments,
    write_modes,
    write_surroundings,
)
from calque.jitting.generated.guards import write_guards
from calque.jitting.generated.kinds import is_known
from calque.jitting.generated.placements import guards_of_inputs, write_placements
from calque.jitting.generated.source import GeneratedFunction
from calque.jitting.generated.steps import is_simple, write_step
from calque.jitting.generated.words import WatchedTensors
from calque.jitting.guards import OptimizerGuard
from calque.program import call_serialization
from calque.state import StateGuard

if TYPE_CHECKING:
    from calque.jitting.program import JittedProgram

_Tensor = torch.Tensor
Call = Callable[[tuple[Any, ...]], Any]


class FastCall(NamedTuple):
    """A program for calls with only tensors.

    Both functions take the positional arguments of a call, and return its result, or `MISS`,
    without changing anything, if the call is of a different kind.

    Attributes:
        alone: for a thread that is alone on the device, and holds `threads.turn`; None if the
            program must always run as in `shared`.
        shared: for any thread.
    """

    alone: Call | None
    shared: Call


class FastCalls:
    """The fast calls of a program, which has one signature.

    Args:
        program: a program that serves every call of the signature, provided that its guards hold
            and no argument shares memory with its `state_written`.
    """

    def __init__(self, program: "JittedProgram") -> None:
        self._program = program
        self._made: FastCall | None = None
        self._made_for: Any = None
        self._seen: Any = None

    def like(self, args: object, kwargs: object, key: object) -> FastCall | None:
        """Returns the fast call for calls like this one, if the arguments are plain tensors and
        nothing else must be compared.

        Args:
            args, kwargs: the arguments of a call that the program serves.
            key: its signature.
        """
        guards = self._program.guards
        now = (spread.exists, *(g.expected for g in guards if type(g) is StateGuard))
        if now != self._made_for:
            if now != self._seen:  # generated at the second such call
                self._seen = now
                return None
            self._made = _made(self._program, args, kwargs, key)
            self._made_for = now
        return self._made


def _made(program: "JittedProgram", args: Any, kwargs: Any, key: Any) -> FastCall | None:
    _, (_, inference, autocast, _, _, modes), sharing, *_ = key
    if kwargs or inference or autocast or modes or sharing or not is_known():
        return None
    if any(type(one) is not _Tensor or one.requires_grad or one.__dict__ for one in args):
        return None
    if not all(hasattr(one.untyped_storage(), "cell") for one in args):
        return None
    alone = _function(program, args, key, True) if is_simple(program) else None
    return FastCall(alone, _function(program, args, key, False))


def _function(program: "JittedProgram", args: Any, key: Any, alone: bool) -> Call:
    _, (grad, _, _, dtype, precise, _), *_ = key
    source = GeneratedFunction("args")
    if alone:  # state shared by threads was checked before
        write_surroundings(source, not args)
    else:
        source.line("{}.checked = {}.changes", program, call_serialization.past)
    guards = program.guards
    if alone:  # some guards are checked later, with their numbers and arrays
        later = guards_of_inputs(program)
        guards = [one for one in guards if type(one) is not OptimizerGuard and one not in later]
    watched = WatchedTensors(guards, args)
    write_arguments(source, list(args), program.state_written, grad, watched)
    write_modes(source, grad, dtype, precise, not args)
    write_placements(source, args, cells(len(args)))
    write_guards(source, guards, grad, not args, watched)
    if alone:
        write_step(source, program)
    else:
        source.line("return {}([*args], (args, {{}}))", program)
    return source.function()
