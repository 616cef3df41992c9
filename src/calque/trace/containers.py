"""What happened to a container of the program, or to the attributes of an object, in a run."""

from collections.abc import Iterator, MutableMapping, MutableSequence, MutableSet
from types import FunctionType
from typing import Any, NamedTuple

from calque.trace.changes import MISSING, NUMBERS, SCALARS, is_same, spoken
from calque.trace.proxy import has_proxy

CONTAINERS = (MutableMapping, MutableSequence, MutableSet)


_READS = ("__getitem__", "__iter__", "__len__", "keys", "values", "items")


def is_container(value: Any) -> bool:
    """Whether a value is a container that can be read without running code of a library's."""
    return isinstance(value, CONTAINERS) and not any(
        name in vars(kind)
        for kind in type(value).__mro__
        if kind.__module__ not in ("builtins", "collections", "collections.abc", "_collections_abc")
        for name in _READS
    )


class Part(NamedTuple):
    """A part of a container that is not as it was.

    Attributes:
        key: of a dictionary, or the name of an attribute; MISSING for the container as a whole.
        what: what happened, in words.
        after: the part as it is; MISSING if it is gone.
        may_stay: whether it is a number, a string or the like.
    """

    key: Any
    what: str
    after: Any = MISSING
    may_stay: bool = False


class Seen:
    """A container as it was.

    Args:
        name: as the program spells it.
        container: a dictionary, list or set of the program's, or the attributes of an object.
        kind: the class of the object.
    """

    def __init__(self, name: str, container: Any, kind: type | None) -> None:
        self.name, self.container, self.kind = name, container, kind
        pairs = isinstance(container, MutableMapping)
        self._before: Any = dict(container) if pairs else list(container)

    def name_of(self, part: Part) -> str:
        """How the program spells the part."""
        if self.kind is not None:
            return f"{self.name}.{part.key}"
        return self.name if part.key is MISSING else f"{self.name}[{part.key!r}]"

    def restore(self) -> None:
        """Make the container what it was."""
        self.container.clear()
        if isinstance(self.container, MutableMapping):
            self.container.update(self._before)
        elif isinstance(self.container, MutableSet):
            for member in self._before:
                self.container.add(member)
        else:
            self.container.extend(self._before)

    def write(self, key: Any, value: Any) -> None:
        """Set one part, or take it away."""
        if value is MISSING:
            self.container.pop(key, None)
        else:
            self.container[key] = value

    def before(self, key: Any) -> Any:
        """What a part was."""
        return self._before.get(key, MISSING) if isinstance(self._before, dict) else MISSING

    def changed(self) -> Iterator[Part]:
        """The parts that are not as they were.

        A dictionary or a set that gets a new member which is no part of the trace is taken for a
        cache; so is an object.
        """
        if isinstance(self.container, MutableMapping):
            yield from self._changed_pairs()
        else:
            yield from self._changed_members()

    def _changed_pairs(self) -> Iterator[Part]:
        for key in self._before:
            if key not in self.container:
                yield Part(key, "is deleted")
        for key, after in list(self.container.items()):
            before = self.before(key)
            if after is before:
                continue
            if has_proxy((after,)):
                yield Part(key, "gets a value of the traced program", after)
            elif isinstance(after, SCALARS) and not is_same(after, before):
                if before is not MISSING:
                    yield Part(key, f"changes from {spoken(before)} to {after!r}", after, True)
                elif self._counts(key, after):
                    yield Part(key, f"becomes {after!r}", after, True)

    def _counts(self, key: Any, value: Any) -> bool:
        """Whether a new attribute is a number that stands for another, or that a function keeps."""
        if self.kind is None or not isinstance(value, NUMBERS):
            return False
        return self.kind is FunctionType or hasattr(self.kind, key)

    def _changed_members(self) -> Iterator[Part]:
        now, before = list(self.container), self._before
        if has_proxy(now):
            yield Part(MISSING, "gets a value of the traced program")
        elif isinstance(self.container, MutableSet):
            if any(member not in self.container for member in before):
                yield Part(MISSING, "loses a member")
        elif len(now) != len(before):
            yield Part(MISSING, f"changes in length from {len(before)} to {len(now)}")
        elif not all(map(is_same, now, before)):
            yield Part(MISSING, "has its members changed")
