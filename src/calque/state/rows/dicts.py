"""Rows of dicts and namespaces: those of modules, objects and classes, and functions' globals."""

from collections import OrderedDict
from collections.abc import Collection
from typing import Any

from calque.state.attribute_lookups import ADDED, INTERCEPTED, InterceptedBuiltin
from calque.state.contents import items_of
from calque.state.paths import Path
from calque.state.rows.row import Row
from calque.state.stand_ins import AddedBuiltin, original, present
from calque.state.values import MISSING


class DictRow(Row):
    """A dict, or the instance dict of an object."""

    __slots__ = ("attribute",)

    def __init__(self, owner: dict[Any, Any], path: Path, attribute: bool = False) -> None:
        self.attribute: bool = attribute  # pyright: ignore[reportIncompatibleVariableOverride]
        super().__init__(owner, path)

    @property
    def _kind(self) -> Any:
        return OrderedDict if isinstance(self.owner, OrderedDict) else dict

    def items(self) -> dict[Any, Any]:
        return dict(items_of(self.owner))

    def get(self, key: Any) -> Any:
        return dict.get(self.owner, key, MISSING)

    def put(self, key: object, value: object) -> None:
        if value is not MISSING:
            self._kind.__setitem__(self.owner, key, value)
        elif dict.__contains__(self.owner, key):
            self._kind.__delitem__(self.owner, key)

    def assign(self, items: dict[Any, Any]) -> None:
        now = self.items()
        for key in now.keys() - items.keys():
            self.put(key, MISSING)
        kept = [key for key in now if key in items]
        if kept != list(items)[: len(kept)]:  # the order differs
            self._kind.clear(self.owner)
        for key, value in items.items():
            self.put(key, value)


class InstanceRow(DictRow):
    """The attributes of an object (or tensor) among a call's arguments."""

    __slots__ = ()

    def __init__(self, owner: Any, path: Path, attribute: bool = True) -> None:
        super().__init__(vars(owner), path, attribute)


_VALIDATES = "_validate_args"
_COMPILERS = ("torch._functorch.", "torch._dynamo.", "torch.export.", "torch._export.")


class HooksRow(DictRow):
    """A process-wide dict of hooks.

    It ignores hooks of calque and of PyTorch's compilers, which any thread may run.
    """

    __slots__ = ()

    def items(self) -> dict[Any, Any]:
        return {key: hook for key, hook in super().items().items() if not _is_passing(hook)}

    def assign(self, items: dict[Any, Any]) -> None:
        own = {key: hook for key, hook in super().items().items() if _is_passing(hook)}
        super().assign({**items, **own})


def is_own_hook(hook: object) -> bool:
    """Returns True if calque itself registered a hook during a trace."""
    return (getattr(hook, "__module__", None) or "").partition(".")[0] == "calque"


def _is_passing(hook: object) -> bool:
    """Returns True if a hook exists only while a function is traced, captured or exported."""
    module = getattr(hook, "__module__", None) or ""
    return is_own_hook(hook) or module.startswith(_COMPILERS)


class NamedRow(Row):
    """Some names in the namespace of a module or an object, or in a function's globals."""

    __slots__ = ("names",)

    ordered = False

    def __init__(self, owner: dict[str, Any], path: Path, names: Collection[str]) -> None:
        self.names: Collection[str] = names
        super().__init__(owner, path)

    def items(self) -> dict[Any, Any]:
        owner, names = self.owner, self.names
        if len(names) < len(owner):
            found = {name: owner[name] for name in names if name in owner}
        else:
            found = {name: value for name, value in owner.items() if name in names}
        if any(
            replaced := [
                name for name in INTERCEPTED if type(found.get(name)) is InterceptedBuiltin
            ]
        ):
            found = {name: value for name, value in found.items() if name not in replaced}
        if present.count:
            found = {
                name: original(value)
                for name, value in found.items()
                if type(value) is not AddedBuiltin
            }
        return found

    def get(self, key: Any) -> Any:
        value = self.owner.get(key, MISSING)
        return MISSING if type(value) in ADDED else original(value)

    def put(self, key: object, value: object) -> None:
        if value is MISSING:
            self.owner.pop(key, None)
        else:
            self.owner[key] = value


class ClassRow(NamedRow):
    """Some attributes of a class, and all methods that Python itself may call."""

    __slots__ = ("kind",)

    def __init__(self, kind: type, path: Path, names: Collection[str]) -> None:
        self.kind: type = kind
        super().__init__(vars(kind), path, names)  # pyright: ignore[reportArgumentType]

    def items(self) -> dict[Any, Any]:
        names = self.names
        return {
            n: v
            for n, v in self.owner.items()
            # Created when it is read.
            if (n in names or _is_special(n, v)) and (n != "__annotations__" or v)
        }

    def put(self, key: Any, value: Any) -> None:
        if value is not MISSING:
            type.__setattr__(self.kind, key, value)
        elif key in self.owner:
            type.__delattr__(self.kind, key)


class LibraryClassRow(ClassRow):
    """Some attributes of a library's class."""

    __slots__ = ()

    def items(self) -> dict[Any, Any]:
        return NamedRow.items(self)


class TracedDefaultsRow(NamedRow):
    """Some attributes of a class of PyTorch, without a default that every trace sets.

    A trace switches the validation of distributions off, whatever the program has chosen.
    """

    __slots__ = ()

    def items(self) -> dict[Any, Any]:
        return {name: value for name, value in super().items().items() if name != _VALIDATES}

    def get(self, key: Any) -> Any:
        return MISSING if key == _VALIDATES else super().get(key)


def _is_special(name: str, value: object) -> bool:
    return name.startswith("__") and name.endswith("__") and callable(value)
