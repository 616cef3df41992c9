"""Places: where a function's Python values stand, so that each call can see that they still do.

A program is compiled for the tensors, modules and plain values behind the names that its function
uses. Every dict, list and closure variable on the way to them is a holder; a program serves only
calls in which its holders hold the same objects (of plain values: equal ones).
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import chain
from operator import attrgetter, is_
from types import CellType
from typing import Any

SCALARS = (bool, int, float, complex, str, bytes, type(None))
MISSING = object()


def same_value(a: Any, b: Any) -> bool:
    """Whether two values are one object, or equal plain values (-0.0 is not 0.0, 1 not True)."""
    return a is b or (type(a) is type(b) and type(a) in SCALARS and repr(a) == repr(b))


class Attributes:
    """The attributes of a class itself, or those in the slots of an object, as a dict's items."""

    __slots__ = ("get", "owner")

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.get = vars(owner).get if isinstance(owner, type) else partial(getattr, owner)

    def __contains__(self, name: str) -> bool:
        return self.get(name, MISSING) is not MISSING

    def __getitem__(self, name: str) -> Any:
        return self.get(name, MISSING)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.owner, name, value)

    def pop(self, name: str, default: Any) -> None:
        if name in self:
            delattr(self.owner, name)


class Holder:
    """A dict, a list, a closure variable or attributes.

    Attributes:
        container: the dict, list, closure cell or `Attributes`.
        path: how the user's program names it.
        keys: the keys of interest; None for all.
        before: what each key held when the holder was found.
    """

    __slots__ = ("before", "container", "keys", "path")

    def __init__(self, container: Any, path: str, keys: Collection[str] | None = None) -> None:
        self.container = container
        self.path = path
        self.keys = keys
        self.before = self.items()

    def items(self) -> dict[Any, Any]:
        """What each key holds now."""
        container, keys = self.container, self.keys
        if isinstance(container, list):
            return dict(enumerate(container))
        if isinstance(container, CellType):
            try:
                return {None: container.cell_contents}
            except ValueError:  # a name that is not bound yet
                return {}
        if keys is None:
            return dict(container)
        return {key: container[key] for key in keys if key in container}

    def put(self, key: Any, value: Any) -> None:
        """Make a key hold a value, or nothing (`MISSING`)."""
        container = self.container
        if isinstance(container, CellType):
            if value is MISSING:
                del container.cell_contents
            else:
                container.cell_contents = value
        elif value is not MISSING:
            container[key] = value
        elif not isinstance(container, list):
            container.pop(key, None)

    def get(self, key: Any) -> Any:
        """What a key holds; `MISSING` if nothing."""
        return self.items().get(key, MISSING) if self.keys is None else self._get(key)

    def _get(self, key: Any) -> Any:
        return self.container.get(key, MISSING)

    def restore(self) -> None:
        """Put back what was held when the holder was found."""
        if isinstance(self.container, list):
            self.container[:] = self.before.values()
            return
        now = self.items()
        if now.keys() == self.before.keys() and all(map(is_, now.values(), self.before.values())):
            return
        for key in now.keys() - self.before.keys():
            self.put(key, MISSING)
        for key, value in self.before.items():
            self.put(key, value)

    def name(self, key: Any) -> str:
        """How the user's program names what a key holds."""
        if key is None:
            return self.path
        if isinstance(self.container, list):
            return f"{self.path}[{key}]"
        if not isinstance(key, str):
            return f"{self.path}[...]"
        return f"{self.path}.{key}" if self.path else key


class PlaceGuard:
    """That holders hold what they held.

    Args:
        holders: the holders, with what is expected in their `before`.
        free: keys of holders that may hold anything, as (holder, key).
    """

    guarded = "what variables, attributes and modules hold"

    def __init__(
        self, holders: Iterable[Holder], free: Collection[tuple[Holder, Any]] = ()
    ) -> None:
        self._free: dict[Holder, set[Any]] = {}
        for holder, key in free:
            self._free.setdefault(holder, set()).add(key)
        self._holders = list(holders)
        self._whole: dict[type, list[Holder]] = {dict: [], list: []}
        self._empty: list[Any] = []
        self._bound: list[Holder] = []
        self._keyed: list[Holder] = []
        self._others: list[Holder] = []
        for holder in self._holders:
            kind = type(holder.container)
            if holder in self._free or (kind is CellType and not holder.before):
                self._others.append(holder)
            elif kind is CellType:
                self._bound.append(holder)
            elif holder.keys is not None:
                self._keyed.append(holder)
            elif not holder.before:
                self._empty.append(holder.container)
            else:
                self._whole[list if isinstance(holder.container, list) else dict].append(holder)
        self._expect()

    def _expect(self) -> None:
        self._rows = [_row(holders) for holders in self._whole.values() if holders]
        self._variables = [holder.container for holder in self._bound]
        self._contents = [holder.before[None] for holder in self._bound]
        self._single = [
            (holder.container.get, key, holder.before.get(key, MISSING))
            for holder in self._keyed
            for key in holder.keys or ()
        ]

    def holds(self) -> bool:
        """Whether every holder holds what it held."""
        if any(map(len, self._empty)):
            return False
        try:
            if not all(map(is_, map(_content, self._variables), self._contents)):
                return self._equal()
        except ValueError:  # a name that is not bound any more
            return False
        for containers, values, lengths, expected in self._rows:
            if list(map(len, containers)) != lengths or not all(
                map(is_, chain.from_iterable(map(values, containers)), expected)
            ):
                return self._equal()
        for get, key, value in self._single:
            if get(key, MISSING) is not value:
                return self._equal()
        return all(self._difference(holder) is None for holder in self._others)

    def _equal(self) -> bool:
        """Whether what is not the same object is an equal value."""
        if self._differing() is not None:
            return False
        self._expect()
        return True

    def why(self) -> str:
        """What the first holder that differs held and holds."""
        found = self._differing()
        if found is None:
            return "a variable changed"
        holder, key = found
        before, now = holder.before.get(key, MISSING), holder.get(key)
        if all(v is MISSING or type(v) in SCALARS for v in (before, now)):
            return f"{holder.name(key)} was {_spoken(before)} and is {_spoken(now)}"
        return f"{holder.name(key)} is another object than it was"

    def _differing(self) -> tuple[Holder, Any] | None:
        for holder in self._holders:
            key = self._difference(holder)
            if key is not None:
                return holder, key[0]
        return None

    def _difference(self, holder: Holder) -> tuple[Any] | None:
        now, before = holder.items(), holder.before
        free = self._free.get(holder, ())
        if now.keys() - before.keys() - set(free):
            return (next(iter(now.keys() - before.keys())),)
        for key, value in before.items():
            current = now.get(key, MISSING)
            if current is not value and key not in free:
                if not same_value(current, value):
                    return (key,)
                before[key] = current
        return None


def _spoken(value: Any) -> str:
    return "not there" if value is MISSING else repr(value)


def _row(holders: list[Holder]) -> tuple[list[Any], Callable[[Any], Any], list[int], list[Any]]:
    containers = [holder.container for holder in holders]
    values = iter if containers and isinstance(containers[0], list) else _values
    lengths = [len(holder.before) for holder in holders]
    expected = [value for holder in holders for value in holder.before.values()]
    return containers, values, lengths, expected


_values = dict.values
_content = attrgetter("cell_contents")
