"""The path of a value in the user's program, such as `model.blocks[0].scale`, formatted when
shown.
"""

from typing import Any


class Path:
    """A name, or a step from another path.

    Attributes:
        foreign: whether it begins at a library's variable.
    """

    __slots__ = ("foreign", "key", "kind", "parent")

    def __init__(
        self, key: Any, parent: "Path | None" = None, kind: str = "name", foreign: bool = False
    ) -> None:
        self.key: Any = key
        self.parent: Path | None = parent
        self.kind: str = kind
        self.foreign: bool = foreign or (parent is not None and parent.foreign)

    def attribute(self, name: object) -> "Path":
        """Returns the path of an attribute."""
        return Path(name, self, "attribute")

    def item(self, key: object) -> "Path":
        """Returns the path of an item of a container."""
        return Path(key, self, "item")

    def members(self, name: object) -> "Path":
        """Returns the path of a dict of an object whose items are attributes of that object."""
        return Path(name, self, "members")

    def __str__(self) -> str:
        if self.parent is None:
            return str(self.key)
        before = str(self.parent.parent if self.parent.kind == "members" else self.parent)
        if self.kind == "attribute" or self.parent.kind == "members":
            return f"{before}.{self.key}" if before else str(self.key)
        if self.kind == "members":
            return f"{before}.{self.key}" if before else str(self.key)
        shown = repr(self.key) if isinstance(self.key, (str, int, float, bool)) else "..."
        return f"{before}[{shown}]"
