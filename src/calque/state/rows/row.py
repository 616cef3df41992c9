"""The base class of rows."""

from collections.abc import Collection
from typing import Any

from calque.state.paths import Path
from calque.state.values import MISSING, same_keys, same_objects, same_value


class Row:
    """A container (see the module).

    Attributes:
        owner: the container.
        path: its path in the user's program.
        before: its contents, by key, when it was found.
        settable: whether its contents can be restored.
        ordered: whether the order of its keys is part of its contents.
        read_in_order: whether the order matters to readers.
        restored: whether it is the program's, so that changes by a trace are undone.
        guarded: whether calls of a program compare it.
    """

    __slots__ = ("before", "guarded", "ignored", "owner", "path", "restored")

    settable = True
    ordered = True
    read_in_order = False
    attribute = True
    """True if keys are attribute names, for messages."""

    def __init__(self, owner: Any, path: Path) -> None:
        self.owner: Any = owner
        self.path: Path = path
        self.guarded: bool = True
        self.restored: bool = not path.foreign
        self.ignored: Collection[Any] = ()
        self.before: dict[Any, Any] = self.items()

    def items(self) -> dict[Any, Any]:
        """Returns the container's current contents, by key."""
        raise NotImplementedError

    def put(self, key: object, value: object) -> None:
        """Set the value of a key, or delete it (`MISSING`)."""
        raise NotImplementedError

    def assign(self, items: dict[Any, Any]) -> None:
        """Set the container's contents, in this order."""
        now = self.items()
        for key in now:
            if key not in items:
                self.put(key, MISSING)
        for key, value in items.items():
            if now.get(key, MISSING) is not value:
                self.put(key, value)

    def get(self, key: Any) -> Any:
        """Returns the value of a key; `MISSING` if there is none."""
        return self.items().get(key, MISSING)

    def name(self, key: Any) -> str:
        """Returns the name of a key's value in the user's program."""
        return str(self.path.attribute(key) if self.attribute else self.path.item(key))

    def rebase(self) -> None:
        """Use the current contents as the reference."""
        self.before = self.items()

    def is_changed(self, now: dict[Any, Any] | None = None) -> bool:
        """Returns True if the contents have changed."""
        now = self.items() if now is None else now
        if same_objects(now, self.before):
            return False
        if self.ordered and not same_keys(now, self.before):
            return True
        return self.difference(now) is not None

    def difference(self, now: dict[Any, Any]) -> tuple[Any] | None:
        """Returns a tuple with the first key whose value has changed."""
        before = self.before
        for key in now:
            if key not in before and key not in self.ignored:
                return (key,)
        for key, value in before.items():
            current = now.get(key, MISSING)
            if current is not value and key not in self.ignored:
                if not same_value(current, value):
                    return (key,)
        return None

    def restore(self) -> None:
        """Restore the contents of when the row was created."""
        now = self.items()
        if self.is_changed(now):
            kept = {key: now[key] for key in self.ignored if key in now}
            self.assign({**self.before, **kept})
