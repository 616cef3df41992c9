"""Detects processes whose programs differ, and ends them with a message that names the line.

All processes must run the same programs with collectives, in the same order. If one takes a
different branch, the others hang, or XLA combines parts of different programs into a meaningless
result. So each process records the names of such programs, and a thread sends them to the others
through JAX's coordination service every second. A difference, or a program that another process can
no longer run, ends the process. Nothing is checked before a program runs.
"""

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax

from calque.errors.frames import user_origin
from calque.upstream.jax_internals import distributed

_FOLDER = "calque/programs"
_SECONDS = 1.0
_MAX_WAIT = 3.0  # seconds to wait for a program that another process, which has ended, did not run
_HINT = 30.0  # seconds until a hint about a program that another process has not begun
_KEPT = 64


class StartedProgram(NamedTuple):
    """A program that a process has started.

    Attributes:
        name: JAX's name of the program.
        line: the user's line that called it.
    """

    name: str
    line: str


class PublishedState(NamedTuple):
    """The state that a process publishes.

    Attributes:
        count: the number of programs that it has started.
        last: the most recent of these.
        ended: whether the process is exiting.
    """

    count: int
    last: list[StartedProgram]
    ended: bool

    def at(self, index: int) -> StartedProgram | None:
        """Returns the program with this index, if it is among the published ones."""
        place = index - (self.count - len(self.last))
        return self.last[place] if 0 <= place < len(self.last) else None


def difference(
    own: int, mine: PublishedState, other: int, others: PublishedState, waits: float
) -> str | None:
    """Returns a description of how the programs of two processes differ; None if they do not so
    far.

    Args:
        own, other: the numbers of the processes.
        mine, others: their states.
        waits: the number of seconds that this process has spent in its last program.
    """
    last = min(mine.count, others.count)
    for index in range(max(0, last - _KEPT), last):
        here, there = mine.at(index), others.at(index)
        if here is not None and there is not None and here.name != there.name:
            return (
                f"program {index + 1} of process {own} is {_as_text(here)}, and of process {other} "
                f"{_as_text(there)}"
            )
    if others.ended and others.count < mine.count and waits > _MAX_WAIT:
        return (
            f"process {own} waits in its program {mine.count}, {_as_text(mine.last[-1])}, but "
            f"process {other} has ended after {others.count}"
        )
    return None


def _as_text(ran: StartedProgram) -> str:
    return f"{ran.name} ({ran.line})"


class ProgramWatch:
    """Records the programs of this process, and compares them with the other processes'."""

    def __init__(self) -> None:
        self._client: Any = distributed.global_state.client
        self._log: tuple[int, list[StartedProgram]] = (0, [])
        self._since: float | None = None
        self._reported: PublishedState | None = None
        self._hinted = -1
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="calque divergence", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    @contextmanager
    def noting(self, name: str) -> Iterator[None]:
        """A context manager in which a program runs to completion."""
        origin = user_origin()
        line = "" if origin is None else f"{os.path.basename(origin.file)}:{origin.line}"
        count, last = self._log
        self._log = count + 1, [*last[1 - _KEPT :], StartedProgram(name, line)]
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def _end(self) -> None:
        """Notify the other processes that this process is exiting. A thread still in C++ would
        abort Python's exit.
        """
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ends.wait(_SECONDS):
                self.look()
            self.look(ended=True)
        except jax.errors.JaxRuntimeError:
            return  # the service has ended, which JAX reports itself

    def look(self, ended: bool = False) -> None:
        """Publish the state, and end this process if the others have run different programs.

        Args:
            ended: whether this process is exiting.
        """
        mine = self._publish(ended)
        since = self._since
        waits = 0.0 if since is None else time.monotonic() - since
        own = jax.process_index()
        for key, text in self._client.key_value_dir_get(_FOLDER):
            other = int(key.rpartition("/")[2])
            if other == own:
                continue
            count, last, ended = json.loads(text)
            others = PublishedState(count, [StartedProgram(*one) for one in last], ended)
            found = difference(own, mine, other, others, waits)
            if found is not None:
                _leave(found)
            if waits > _HINT and others.count < mine.count and self._hinted < mine.count:
                self._hinted = mine.count
                _say(
                    f"process {own} has waited {waits:.0f} s in its program {mine.count}, "
                    f"{_as_text(mine.last[-1])}, which process {other} has not started: it has "
                    f"started {others.count}"
                )

    def _publish(self, ended: bool) -> PublishedState:
        """Publish the changes since the last time."""
        count, last = self._log
        mine = PublishedState(count, last, ended)
        reported = self._reported
        if reported is None or (reported.count, reported.ended) != (mine.count, ended):
            text = json.dumps([count, last, ended])
            key = f"{_FOLDER}/{jax.process_index()}"
            self._client.key_value_set(key, text, allow_overwrite=True)
            self._reported = mine
        return mine


def _leave(found: str) -> None:
    _say(
        f"the processes do not run the same program: {found}. Every process must run every "
        "operation on spread tensors, in the same order, even if only one of them prints or "
        "saves the result. This process exits"
    )
    os._exit(1)


def _say(text: str) -> None:
    print(f"calque: {text}", file=sys.stderr, flush=True)
