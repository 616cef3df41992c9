"""The states of the `torch.Generator`s that a program reaches.

A graph draws from such a generator as the program does, but it does not set the state: the methods
that do (`manual_seed`, `set_state`) are C functions of a type that cannot be patched. So the states
are compared.
"""

from collections.abc import Iterator
from typing import Any

import torch

from calque.state.paths import Path
from calque.upstream import torch_c
from calque.upstream.torch_internals import disable_current_modes


class GeneratorStates:
    """Generators, each with its last known state."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Any, torch.Tensor, Path]] = {}

    def visit(self, generator: Any, path: Path) -> None:
        """Add a generator that the program can reach, before it runs."""
        self._last[id(generator)] = generator, _state_of(generator), path

    def has(self, generator: Any) -> bool:
        """Returns True if the generator was added."""
        return id(generator) in self._last

    def has_any_but(self, generator: object) -> bool:
        """Returns True if another generator was added."""
        return not self._last.keys() <= {id(generator)}

    def drawn(self, generator: object) -> None:
        """Note that a draw, which the graph repeats, has advanced a generator."""
        if id(generator) in self._last:
            self.visit(generator, self._last[id(generator)][2])

    def is_set(self, generator: object) -> bool:
        """Returns True if a generator's state differs from its last known one."""
        found = self._last.get(id(generator))
        return found is not None and not _same(_state_of(generator), found[1])

    def all_set(self) -> Iterator[tuple[Any, Path]]:
        """Yields the generators whose state was changed other than by a draw, with their names."""
        for generator, _, path in self._last.values():
            if self.is_set(generator):
                yield generator, path

    def restore(self, but: object = None) -> None:
        """Restore the last known state of each generator except one."""
        for generator, state, _ in self._last.values():
            if generator is but:
                continue
            with disable_current_modes(), torch_c.DisableTorchFunction():
                generator.set_state(state)


def _state_of(generator: Any) -> torch.Tensor:
    with disable_current_modes(), torch_c.DisableTorchFunction():
        return generator.get_state()


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    with disable_current_modes(), torch_c.DisableTorchFunction():
        return torch.equal(a, b)


def set_within(name: str) -> str:
    """Returns the message for a generator whose state the program sets."""
    return (
        f"the program sets the state of the torch.Generator {name}, which a graph would not "
        "repeat; set it outside the program, create the generator within it, or use "
        "torch.manual_seed"
    )
