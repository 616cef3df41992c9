"""The compiled programs of a jitted function; equal programs are compiled once."""

import logging
import time
from collections import deque
from typing import Any
from weakref import WeakValueDictionary

from calque.device.runtime.code_generation import Options
from calque.device.runtime.executable import calls_back, devices_of
from calque.program.direct_call import compile_checked
from calque.program.slow_log import announced

logger: logging.Logger = logging.getLogger("calque.jit")


class Executables:
    """Compiled programs, by their text.

    Args:
        name: the function's name, for messages.
        kept: the number of recent executables to keep when no program uses them, so that a
            function that is traced at each call compiles once.

    Attributes:
        compilations: the number of compilations by XLA.
    """

    def __init__(self, name: str, kept: int) -> None:
        self.compilations: int = 0
        self._name = name
        self._known: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._recent: deque[Any] = deque(maxlen=kept)

    def of(self, lowered: Any, options: Options) -> Any:
        """Returns the executable of a lowered program, compiled if it is new."""
        if calls_back(lowered):  # its text does not identify the callbacks
            return self._compile(lowered, options)
        text = hash((lowered.as_text(), devices_of(lowered), *options.items()))
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._compile(lowered, options)
        self._recent.append(known)
        return known

    def _compile(self, lowered: Any, options: Options) -> Any:
        self.compilations += 1
        started = time.perf_counter()
        with announced(f"compiling {self._name}"):
            executable = compile_checked(lowered, options)
        logger.info("%s: compiled in %.2f s", self._name, time.perf_counter() - started)
        return executable
