"""Guards of many containers and tensors, compared by words of memory (see `upstream.memory`).

If some words differ, the guards themselves are compared, and the words are read anew if they hold.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, eq, is_
from typing import Any, NamedTuple

import numpy as np
import torch

from calque.jitting.generated.kinds import kinds_of
from calque.jitting.generated.source import LEAVE, GeneratedFunction
from calque.jitting.guards import CellGuard, GradientGuard, Guard
from calque.state import StateGuard
from calque.state.versions import Versions
from calque.upstream import memory, torch_c

_FEWEST = 8
"""The number of tensors from which on their words are compared."""
_SHORTEST = 120
"""The time, in tens of ns, that other comparisons of containers must take before words are read."""
_requires_grad = attrgetter("requires_grad")
_gradient = attrgetter("grad")
_hooks = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")
_storage_of = torch.Tensor.untyped_storage
_offset = torch.Tensor.storage_offset


class _Read(NamedTuple):
    """The places of words of tensors, and the words."""

    tensors: np.ndarray
    autograd: np.ndarray
    words: tuple[bytes, bytes, bytes]


class TensorWords:
    """The words of tensors: their Python objects, what those refer to, and what autograd adds.

    Each is read only if the references to it are unchanged, so that it is alive.

    Args:
        tensors: tensors for which `memory.is_readable` is True.
        unhooked: those of them whose hooks are compared.
        checks: the guards for which the words stand.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        unhooked: Sequence[torch.Tensor],
        checks: Sequence[Callable[[], bool]],
    ) -> None:
        self._tensors = tensors  # keeps them alive
        self._checks = checks
        self._objects: np.ndarray = memory.object_places(tensors)
        self.objects: np.ndarray = np.concatenate([self._objects, memory.hook_places(unhooked)])
        self._adopt(self._read())
        self.seen: tuple[bytes, bytes, bytes] = (b"", b"", b"")  # checked at the first call

    def _read(self) -> _Read:
        places = memory.tensor_places(self._objects)
        a, b, c = (memory.read(found).tobytes() for found in (self.objects, *places))
        return _Read(*places, (a, b, c))

    def _adopt(self, now: _Read) -> None:
        self.tensors: np.ndarray = now.tensors
        self.autograd: np.ndarray = now.autograd
        self.seen = now.words

    def hold(self) -> bool:
        """Returns True if the guards hold."""
        now = self._read()
        if not all(check() for check in self._checks):
            return False
        if self._read().words == now.words:  # otherwise another thread is changing them
            self._adopt(now)
        return True

    def write(self, source: GeneratedFunction) -> None:
        """Write the line that compares the words."""
        read, own = source.name(memory.read), source.name(self)
        parts = [("objects", 0), ("tensors", 1), ("autograd", 2)]
        differ = " or ".join(
            f"{read}({own}.{name}).tobytes() != {own}.seen[{index}]" for name, index in parts
        )
        source.line(f"if ({differ}) and not {{}}(): {LEAVE}", self.hold)


class WatchedTensors:
    """The tensors of guards: those whose words are compared, and the others.

    Args:
        guards: the guards.
        args: example arguments, whose kinds are compared.

    Attributes:
        words: compares the words; None if there are few tensors.
        beside: the tensors whose kinds must be compared.
        known: the ids of all tensors whose words are compared.
    """

    def __init__(self, guards: Sequence[Guard], args: Sequence[torch.Tensor]) -> None:
        held = tensors_of(guards)
        self.beside: list[torch.Tensor] = held
        self.known: frozenset[int] = frozenset()
        self.words: TensorWords | None = None
        readable = _distinct([*held, *_others(guards)]) if len(held) >= _FEWEST else []
        if not readable or not memory.knows_tensors():
            return
        readable = [one for one in readable if memory.is_readable(one)]
        known = frozenset(map(id, readable))
        compared = [one for one in held if id(one) in known]
        if not compared:
            return
        self.known = known
        keys = {torch_c.dispatch_keys(one).raw_repr() for one in args}
        others = {torch_c.dispatch_keys(one).raw_repr(): one for one in compared}
        self.beside = [one for one in held if id(one) not in known]
        # Tensors whose keys are equal are in the same modes.
        self.beside += [one for key, one in others.items() if key not in keys]
        bare = [one for one in _unhooked(guards) if id(one) in known]
        self.words = TensorWords(readable, bare, list(_checks(guards, compared, known)))


def tensors_of(guards: Sequence[Guard]) -> list[torch.Tensor]:
    """Returns the distinct tensors whose memory and kinds guards compare."""
    return _distinct(
        tensor for one in guards if isinstance(one, CellGuard) for tensor in one.tensors
    )


def _distinct(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def _others(guards: Sequence[Guard]) -> Iterable[torch.Tensor]:
    for one in guards:
        if isinstance(one, GradientGuard):
            yield from one.leaves
            yield from one.without
    yield from _unhooked(guards)


def _unhooked(guards: Sequence[Guard]) -> list[torch.Tensor]:
    states = (one for one in guards if isinstance(one, StateGuard))
    return [tensor for one in states for tensor in one.identities.unhooked]


def _checks(
    guards: Sequence[Guard], compared: Sequence[torch.Tensor], known: frozenset[int]
) -> Iterable[Callable[[], bool]]:
    """Yields functions that compare what the words of known tensors stand for."""
    kinds = kinds_of(compared)
    yield lambda: kinds(*compared)
    for one in guards:
        if isinstance(one, CellGuard):
            rows = [row for row in zip(one.tensors, one.storages) if id(row[0]) in known]
            yield _comparison(is_, _storage_of, [t for t, _ in rows], [s for _, s in rows])
            offsets = [tensor.storage_offset() for tensor, _ in rows]
            yield _comparison(eq, _offset, [t for t, _ in rows], offsets)
        elif isinstance(one, GradientGuard):
            flags = [pair for pair in zip(one.leaves, one.flags) if id(pair[0]) in known]
            leaves, expected = [leaf for leaf, _ in flags], [flag for _, flag in flags]
            yield _comparison(is_, _requires_grad, leaves, expected)
            without = [leaf for leaf in one.without if id(leaf) in known]
            yield _comparison(is_, _gradient, without, [None] * len(without))
    bare = [tensor for tensor in _unhooked(guards) if id(tensor) in known]
    yield _comparison(eq, _hooks, bare, [(None, None)] * len(bare))


def _comparison(
    same: Callable[[Any, Any], bool],
    read: Callable[[Any], Any],
    tensors: list[torch.Tensor],
    expected: list[Any],
) -> Callable[[], bool]:
    return lambda: all(map(same, map(read, tensors), expected))


class ContainerWords:
    """The words of containers that are empty, and of dicts that have versions.

    Args:
        empty: lists, dicts and sets.
        versions: the dicts.

    Attributes:
        others: containers whose lengths cannot be read.
        versions: the dicts whose objects' references to them cannot be read.
        index: the places of the words.
        seen: the words that are expected.
    """

    def __init__(self, empty: Sequence[Any], versions: Sequence[Versions]) -> None:
        places = list(map(memory.length_place, empty))
        self.others: list[Any] = [one for one, at in zip(empty, places) if at is None]
        self._empty = [one for one, at in zip(empty, places) if at is not None]  # keeps them alive
        constant: list[tuple[int, int]] = [(at, 0) for at in places if at is not None]
        self.versions: list[Versions] = []
        self._read: list[Versions] = []
        tags: list[int] = []
        for one in versions:
            own = [] if one.owners is None else list(map(memory.dict_place, one.owners, one.dicts))
            if None in own:
                self.versions.append(one)
                continue
            constant += [(at, id(held)) for at, held in zip(own, one.dicts)]  # type: ignore[misc]
            tags += map(memory.version_place, one.dicts)
            self._read.append(one)
        self.index: np.ndarray = np.array([at for at, _ in constant] + tags, np.intp)
        self._constant = np.array([value for _, value in constant], np.uint64).tobytes()
        self.seen: bytes = self._constant

    @staticmethod
    def of(empty: Sequence[Any], versions: Sequence[Versions]) -> "ContainerWords | None":
        """Returns the words of containers, if there are many and their layout is known."""
        time = len(empty) + 6 * sum(len(one.dicts) for one in versions)
        many = time >= _SHORTEST and memory.knows_containers()
        return ContainerWords(empty, versions) if many else None

    def hold(self) -> bool:
        """Returns True if the containers are empty, and the dicts hold what they held."""
        now = memory.read(self.index).tobytes()  # read first, so that later changes are detected
        if now[: len(self._constant)] != self._constant:
            return False
        if not all(one.hold() for one in self._read):
            return False
        self.seen = now
        return True

    def write(self, source: GeneratedFunction) -> None:
        """Write the line that compares the words."""
        read, own = source.name(memory.read), source.name(self)
        line = f"if {read}({own}.index).tobytes() != {own}.seen and not {{}}(): {LEAVE}"
        source.line(line, self.hold)
