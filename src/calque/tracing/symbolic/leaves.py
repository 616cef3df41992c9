"""Leaf modules, and whether the program has changed them before a call.

A leaf is one node, so the module is called in the state that it has when the graph runs. Changes
that the program makes for one call, such as `self.dropout.train()`, a hook or a new weight, would
be lost. Such a call is traced into the module instead, where the changes take effect.
"""

import inspect
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import chain, starmap
from operator import is_
from typing import Any

from torch.fx import Proxy
from torch.nn import Module
from torch.nn.modules import module as module_of_torch

from calque.state import ATOMIC
from calque.state.ownership import Owner, owner_of_class, owner_of_code
from calque.state.rows import is_own_hook

_GLOBAL_HOOKS = tuple(
    value
    for name, value in vars(module_of_torch).items()
    if name.startswith("_global_") and isinstance(value, dict)
)


class ModuleState:
    """The current state of a module and of everything that a call of it depends on.

    Attributes:
        module: the module.
        kind: its class.
        held: its attributes.
        full: the non-empty containers among its attributes, by name, with their contents.
        empty: the empty containers.
        names: the names of the empty containers.
        others: other mutable attributes, by name.
    """

    __slots__ = ("empty", "full", "held", "kind", "module", "names", "others")

    def __init__(self, module: Module) -> None:
        self.module: Module = module
        self.kind: type[Module] = type(module)
        held = dict(vars(module))
        self.held: dict[str, Any] = held
        self.full: list[tuple[str, Any, Any]] = []
        self.empty: list[Any] = []
        self.names: list[str] = []
        self.others: list[tuple[str, Any]] = []
        for name, value in held.items():
            kind = type(value)
            if kind in ATOMIC:
                continue
            if kind not in _CONTAINERS:
                self.others.append((name, value))
            elif value:
                self.full.append((name, value, _copied(value)))
            else:
                self.empty.append(value)
                self.names.append(name)
                if kind is list or kind is set:
                    self.others.append((name, value))

    def is_same(self) -> bool:
        """Returns True if the module is unchanged."""
        now, before = vars(self.module), self.held
        if type(self.module) is not self.kind or any(self.empty) or len(now) != len(before):
            return False
        if not all(map(is_, now.values(), before.values())):
            return False
        if not all(map(is_, now, before)) and list(now) != list(before):
            return False
        return all(starmap(_is_held, self.full))


class _Classes:
    """The current contents of a module's classes, up to `Module`."""

    def __init__(self, kind: type) -> None:
        spaces = [vars(base) for base in kind.__mro__[: kind.__mro__.index(Module)]]
        self._keys, self._values = spaces, [space.values() for space in spaces]
        self._names = list(chain.from_iterable(self._keys))
        self._held = list(chain.from_iterable(self._values))

    def are_same(self) -> bool:
        """Returns True if they are unchanged, apart from calque's own patches."""
        if sum(map(len, self._keys)) != len(self._held):
            return False
        if not all(map(is_, chain.from_iterable(self._values), self._held)):
            values = zip(chain.from_iterable(self._values), self._held)
            if not all(now is held or _stands_for(now, held) for now, held in values):
                return False
        return all(map(is_, chain.from_iterable(self._keys), self._names))


def _stands_for(now: Any, held: Any) -> bool:
    """Returns True if `now` is calque's patch of the function `held`."""
    code = getattr(now, "__code__", None)
    return code is not None and code.co_filename.startswith(_HOME) and now.__wrapped__ is held


class ModuleLeaves:
    """Modules as they were before a run of the program.

    Args:
        known: the modules found so far, by id; more are added when code that refers to them starts.
    """

    def __init__(self, known: Mapping[int, ModuleState]) -> None:
        self._known = known
        self._before = dict(known)
        self._kinds: dict[type, _Classes] = {}
        self._whole: set[Module] = set()
        self._late: list[ModuleState] = []
        for held in known.values():
            self._know_class(held.kind)
        self._hooks = _global_hooks()
        self._assigned: dict[int, Module] = {}
        self._made: dict[int, Module] = {}

    def forget(self) -> None:
        """Release everything after the run."""
        self._before.clear()
        self._known = {}
        self._whole.clear()
        self._late.clear()

    def made(self, module: Module) -> None:
        """Note that the program has created a module, which therefore cannot be a leaf."""
        self._made[id(module)] = module

    def assigned(self, module: Module) -> bool:
        """Note that the program assigns an attribute; returns True if the module existed before the
        run.

        This counts even if the attribute has the value already: after `self.dropout.train()`, the
        module is called in training mode even when the graph runs in evaluation mode.
        """
        if id(module) in self._made:
            return False
        self._assigned[id(module)] = module
        return True

    def has_assigned(self, root: Module) -> bool:
        """Returns True if the program has assigned an attribute of a module or of its
        submodules.
        """
        return bool(self._assigned) and any(id(m) in self._assigned for m in root.modules())

    def add(self, root: Module) -> None:
        """Add a module that is called, which may not be part of the root."""
        if id(root) in self._before and (not root._modules or root in self._whole):
            return
        self._whole.add(root)
        for module in root.modules():
            if id(module) in self._before:
                continue
            held = self._known.get(id(module))
            if held is None:
                held = ModuleState(module)
                self._late.append(held)
            self._before[id(module)] = held
            self._know_class(held.kind)

    def is_member(self, root: Module, path: str, value: object) -> bool:
        """Returns True if a path leads to this value when the graph runs, as it did before the
        trace.

        During the trace, the program may have replaced it, as `torch.func.functional_call` does.
        """
        owner, _, name = path.rpartition(".")
        try:
            module = root.get_submodule(owner)
        except AttributeError:  # it has no such member
            return True
        held = self._before.get(id(module)) or self._known.get(id(module))
        if held is None:
            return True
        members = (copied for _, _, copied in held.full if isinstance(copied, dict))
        return held.held.get(name) is value or any(one.get(name) is value for one in members)

    def changed_since(self) -> set[Module]:
        """Returns the modules that were first found when they were called, and have changed since.

        The program may have changed them for that call only.
        """
        return {held.module for held in self._late if not held.is_same()}

    def must_be_followed(self, leaf: Module) -> bool:
        """Returns True if a call cannot be one node: the module was changed for it, holds values of
        the program, or runs code that is not PyTorch's.
        """
        return self.is_changed(leaf) or _holds_values(leaf) or not is_of_torch(leaf)

    def is_changed(self, leaf: Module) -> bool:
        """Returns True if a call does not do what it would have done before the run."""
        if not leaf._modules:
            return self.is_changed_itself(leaf)
        return self._have_hooks_changed() or any(map(self._differs, leaf.modules()))

    def is_changed_itself(self, module: Module) -> bool:
        """Like `is_changed`, but without its submodules."""
        return self._have_hooks_changed() or self._differs(module)

    def _have_hooks_changed(self) -> bool:
        if not any(_GLOBAL_HOOKS) and not any(self._hooks):
            return False
        return not all(map(alike, _global_hooks(), self._hooks))

    def _differs(self, module: Module) -> bool:
        if id(module) in self._assigned:
            return True
        before = self._before.get(id(module))
        if before is None:
            return id(module) not in self._made
        return not (before.is_same() and self._kinds[before.kind].are_same())

    def _know_class(self, kind: type) -> None:
        if kind not in self._kinds:
            self._kinds[kind] = _Classes(kind)


def is_of_torch(root: Module) -> bool:
    """Returns True if a call of the module runs only PyTorch's code: it has no hooks and no foreign
    classes.

    Other code may store its arguments where the program finds them, which the graph would miss.
    """
    if any(map(any, map(_hooks_of_others, _global_hooks()))):
        return False
    for module in root.modules() if root._modules else (root,):
        if module is not root and owner_of_class(type(module)) is not Owner.ENGINE:
            return False
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            if hooks and any(_hooks_of_others(hooks)):
                return False
    return True


def has_backward_hooks(module: Module) -> bool:
    """Returns True if the module has backward hooks, which no trace sees."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def _holds_values(root: Module) -> bool:
    """Returns True if the program computed tensors of a module, as in a copy."""
    held = (chain(m._parameters.values(), m._buffers.values()) for m in root.modules())
    return any(isinstance(value, Proxy) for value in chain.from_iterable(held))


def _hooks_of_others(hooks: Mapping[int, Any]) -> Iterator[bool]:
    for hook in hooks.values():
        function = getattr(inspect.unwrap(hook), "__func__", hook)
        code = getattr(function, "__code__", None)
        owner = owner_of_class(type(hook)) if code is None else owner_of_code(code)
        yield owner is not Owner.ENGINE and not is_own_hook(hook)


def _global_hooks() -> list[dict[int, Any]]:
    """Returns the user's global module hooks."""
    return [{k: h for k, h in hooks.items() if not is_own_hook(h)} for hooks in _GLOBAL_HOOKS]


_HOME = os.path.dirname(os.path.dirname(__file__)) + os.sep
_CONTAINERS = frozenset((dict, list, set, OrderedDict))


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else list(value)


def alike(a: Any, b: Any) -> bool:
    """Returns True if two containers hold the same objects, in the same order."""
    if len(a) != len(b):
        return False
    if not isinstance(b, list):
        if not all(map(is_, a, b)) and list(a) != list(b):
            return False
        a, b = a.values(), b.values()
    return all(map(is_, a, b))


def _is_held(name: str, container: object, held: object) -> bool:
    return alike(container, held)
