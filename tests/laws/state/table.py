"""All programs, by group, and the decorator that adds one."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

from tests.laws.state import programs as _programs
from tests.laws.state.case import MODES
from tests.laws.state.runner import Program

PROGRAMS: dict[str, Program] = {}


def group(name: str, modes: str = "eager jit rows") -> Callable[..., Any]:
    """A decorator for the programs of a group: `@program` or `@program(states=2, modes="jit")`."""
    default = modes

    def program(
        body: Callable[..., Iterator[Any]] | None = None,
        *,
        states: int = 1,
        each_call: bool = False,
        modes: str = default,
    ) -> Any:
        def add(body: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
            named = tuple(modes.split())
            assert set(named) <= set(MODES), named
            assert body.__name__ not in PROGRAMS, f"two programs are named {body.__name__}"
            PROGRAMS[body.__name__] = Program(
                body.__name__, name, body, named, states=states, each_call=each_call
            )
            return body

        return add if body is None else add(body)

    return program


def load() -> dict[str, Program]:
    """Every program of every table."""
    for found in pkgutil.iter_modules(_programs.__path__):
        importlib.import_module(f"{_programs.__name__}.{found.name}")
    return PROGRAMS
