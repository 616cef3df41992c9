"""Instructions that use a followed value, including calls."""

import builtins
import inspect
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from calque.errors.bytecode import LOCALS, Instruction, producer


class Use:
    """An instruction that uses a followed value (see `text_use`).

    Args:
        code: the code with the instruction.
        instructions, at: the code's instructions, and the index of this one.
        depth: how many values are above the value on the stack.
        known: the globals of the code.
        frame: the frame that runs it; None if it is not running.
    """

    def __init__(
        self,
        code: CodeType,
        instructions: list[Instruction],
        at: int,
        depth: int,
        known: dict[str, Any],
        frame: FrameType | None,
    ) -> None:
        self.code = code
        self.instruction: Instruction = instructions[at]
        self.depth = depth
        self.known = known
        self.frame = frame
        self._instructions = instructions
        self._at = at

    def argument(self) -> int | str | None:
        """Returns the position or keyword of the argument; None if the value is the callee."""
        count, names = self.instruction.arg or 0, self._keywords()
        place = count - 1 - (self.depth - (self.instruction.opname == "CALL_KW"))
        if place < 0:
            return None
        first = count - len(names)
        return names[place - first] if place >= first else place

    def _keywords(self) -> tuple[str, ...]:
        for one in reversed(self._instructions[max(0, self._at - 3) : self._at]):
            if one.opname == "KW_NAMES":
                return self.code.co_consts[one.arg or 0]
            if one.opname == "LOAD_CONST" and self.instruction.opname == "CALL_KW":
                return one.argval
            if one.opname not in ("PRECALL", "CACHE"):
                break
        return ()

    def is_discarded(self) -> bool:
        """Returns True if the result of the call is discarded."""
        after = self._instructions[self._at + 1 :]
        following = next((one for one in after if one.opname != "CACHE"), None)
        return following is not None and following.opname == "POP_TOP"

    def callee(self) -> Any:
        """Returns the callee, or the name of a string method; None if it is unknown."""
        above = (self.instruction.arg or 0) + (self.instruction.opname == "CALL_KW")
        for depth in (above, above + 1):
            at = producer(self._instructions, self._at, depth)
            if at is not None and self._instructions[at].opname != "PUSH_NULL":
                return self._value(at)
        return None

    def _value(self, at: int) -> Any:
        """Returns the value that an instruction loaded, without running code of the program."""
        one = self._instructions[at]
        if one.opname == "LOAD_GLOBAL":
            return self.known.get(one.argval, getattr(builtins, one.argval, None))
        held = {} if self.frame is None else self.frame.f_locals
        if one.opname in LOCALS or one.opname == "LOAD_DEREF":
            return held.get(one.argval)
        if one.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            return None
        source = producer(self._instructions, at, 0)
        if source is None:
            return None
        if self._instructions[source].opname in ("LOAD_CONST", "BUILD_STRING"):
            return one.argval
        owner = self._value(source)
        found = None if owner is None else inspect.getattr_static(owner, one.argval, None)
        if isinstance(found, FunctionType) and not isinstance(owner, type | ModuleType):
            return MethodType(found, owner)
        return getattr(found, "__func__", found)


def parameter(called: Any, place: int | str) -> str | None:
    """Returns the name of the function's parameter that an argument is bound to."""
    if isinstance(place, str):
        return place
    if isinstance(called, MethodType):
        place += 1
    code = called.__code__
    return code.co_varnames[place] if place < code.co_argcount else None
