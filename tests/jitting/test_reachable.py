"""The search for what a function reaches."""

import sys
from types import CodeType, FrameType, FunctionType
from typing import Any

from calque.jitting.reachable import Reachable


class _Settings:
    """One of very many objects of a program."""

    def __init__(self) -> None:
        self.name, self.scale = "layer", 2.0


def _reading(names: int) -> CodeType:
    text = "".join(f"    settings.attribute_{i}\n" for i in range(names))
    made = compile(f"def read(settings):\n{text}", "program.py", "exec")
    return next(c for c in made.co_consts if isinstance(c, CodeType))


def _calls(objects: int, names: int) -> int:
    read = FunctionType(_reading(names), {})
    held = [_Settings() for _ in range(objects)]
    found = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal found
        found += event == "c_call"

    sys.setprofile(count)
    try:
        Reachable(read, held)
    finally:
        sys.setprofile(None)
    return found


def test_the_search_does_not_look_up_every_name_in_every_object() -> None:
    few, many = _calls(200, 10), _calls(200, 400)
    assert many < 2 * few + 5000
