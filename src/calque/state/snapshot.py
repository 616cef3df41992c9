"""The Python state that a traced function can reach, as it is before the function changes it.

Where a value is met, what it holds is followed; which attributes of the user's own objects matter,
and which global variables, is told by the code that runs (`running`), at the moment when it starts.
So nothing is guarded that did not run, and what the code computes with is known before it does.
"""

import abc
import array
import builtins
import contextvars
import enum
import functools
import gc
import logging
import sys
import threading
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import Module
from torch.nn.modules import module as module_of_torch
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_of_torch

from calque.state.differing import differs
from calque.state.lookups import (
    GETTERS,
    Everything,
    LocalRow,
    finds_modules,
    hands_over,
    looks_names_up,
    modules_of_the_user,
    registered,
    words_of_getter,
)
from calque.state.matters import (
    WRAPPERS,
    functions_of,
    is_of_the_user,
    is_program,
    is_random,
    matters_in_library,
    registries_in,
)
from calque.state.names import Names, names_of
from calque.state.opaque import moves, opaque
from calque.state.patched import FUNCTIONAL, METHODS_OF_TENSORS, extend_with, functional_of
from calque.state.paths import Path
from calque.state.rows import (
    AttributeRow,
    BytesRow,
    CacheRow,
    CellRow,
    ClassRow,
    ContextRow,
    DictRow,
    HooksRow,
    ListRow,
    NamedRow,
    Row,
    SetRow,
    StateRow,
    function_row,
    set_attribute,
)
from calque.state.settings import is_setting, setting_of
from calque.state.values import ATOMIC, MISSING, instance_dict
from calque.state.whose import (
    Owner,
    home_of_class,
    owner_of_class,
    owner_of_code,
    owner_of_module,
    owner_of_name,
)

_MEMBERS = frozenset(("_parameters", "_buffers", "_modules"))
_QUIET = ("logging", "threading", "_thread", "concurrent", "multiprocessing", "asyncio", "weakref")
"""Modules whose objects serve the process, not the program."""
_READS_OF_STATE = frozenset(("getstate", "get_state", "state", "bit_generator", "tell"))
"""Names by which code asks how far something has moved on, without using it."""
_CALLED = frozenset(
    ("forward", "backward", "setup_context")
    + ("__call__", "__getattr__", "__getitem__", "__iter__", "__len__")
)
"""Methods that PyTorch or Python calls, though no code of the program's names them."""
_IDENTITY = frozenset(("id", "hash"))
_FAMILY = "__subclasses__"
_IMPLIED = {"warnings": "filters", "decimal": "getcontext"}
"""What a library's module goes by, though no code names it."""


class Snapshot:
    """Rows for all that was met (see the module).

    Args:
        roots: what to begin with.
        passes: says of an object that it is none of the program's.

    Attributes:
        rows: the rows, by the id of their container (and a mark, where one object has several).
        known: every object met, by id; kept alive.
        tensors: those among them that are tensors, by id.
        weak: those that something refers to weakly, by id.
        codes: the code that has run, with whose it is.
        moving: rows of what moves on as it is used, and matters where that is read.
        unrepeatable: what the function did that cannot be seen in any state, in words.
        compares_objects: whether the user's code asks whether two things are one object.
        asks_identity: whether it asks which object something is.
        has_differing: whether a builtin function was met whose results differ by nature.
        on_difference: is called where one is met.
    """

    def __init__(self, *roots: Any, passes: Callable[[Any], bool] = lambda value: False) -> None:
        self.rows: dict[Any, Row] = {}
        self.known: dict[int, Any] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.codes: dict[types.CodeType, Owner] = {}
        self.unrepeatable: list[str] = []
        self.has_differing = self.compares_objects = self.asks_identity = False
        self.on_difference: Callable[[], None] = lambda: None
        self.weak: dict[int, Any] = {}
        self._passes = passes
        self._words: set[str] = set(_CALLED)
        self._own_words: set[str] = set()  # those of the user's own code
        self._classes: dict[int, type] = {}
        self._whole = self._anywhere = False
        self._everything = Everything(self._words)
        self._functions: dict[types.CodeType, list[types.FunctionType]] = {}
        self._nested: set[types.CodeType] = set()
        self._namespaces: list[NamedRow] = []
        self.moving: list[Row] = []
        self._libraries: list[tuple[types.ModuleType, Path]] = []
        self._stack: list[tuple[Any, Path]] = []
        self._elsewhere = False
        self._unseen: list[tuple[types.CodeType, dict[str, Any]]] = []
        self._methods = NamedRow(vars(torch.Tensor), Path("Tensor", foreign=True), set())
        self._hold(self._methods, ("x", id(torch.Tensor)))
        for place, name in _GLOBAL_HOOKS:
            self._push_items(self._hold(HooksRow(place.__dict__[name], Path(name))))
        for root in roots:
            self.visit(root, "")

    # Values -------------------------------------------------------------------------------------

    def visit(self, value: Any, path: "Path | str") -> None:
        """Meet a value, and all that it holds."""
        self._stack.append((value, Path(path) if isinstance(path, str) else path))
        self._drain()

    def _drain(self) -> None:
        stack, known = self._stack, self.known
        while stack or self._unseen:
            if not stack:
                self._read(*self._unseen.pop())
                continue
            value, path = stack.pop()
            kind = type(value)
            if kind in ATOMIC or id(value) in known:
                continue
            known[id(value)] = value
            if self._passes(value):
                continue
            if finds_modules(value):
                stack += [(m, Path(m.__name__)) for m in modules_of_the_user()]
                if value is sys.modules:
                    continue
            handler = _HANDLERS.get(kind)
            if handler is None:
                handler = next((h for k, h in _KINDS if isinstance(value, k)), Snapshot._object)
            handler(self, value, path)

    def _hold(self, row: Row, key: Any = None) -> Row:
        self.rows[id(row.owner) if key is None else key] = row
        return row

    def _push_items(self, row: Row) -> None:
        stack, path = self._stack, row.path
        step = path.attribute if row.attribute else path.item
        for key, value in row.before.items():
            kind = type(value)
            if kind not in ATOMIC and id(value) not in self.known:
                stack.append((value, step(key)))

    def _hold_dict(self, value: dict[Any, Any], path: Path, attribute: bool = False) -> None:
        if id(value) in self.rows:
            return
        self.known[id(value)] = value
        row = self._hold(DictRow(value, path, attribute))
        self._push_items(row)
        if not attribute:
            for key in row.before:
                if type(key) not in ATOMIC and id(key) not in self.known:
                    self._stack.append((key, path.item("...")))

    def _dict(self, value: dict[Any, Any], path: Path) -> None:
        self._hold_dict(value, path)
        if isinstance(value, defaultdict):
            self._hold(AttributeRow(value, path, _FACTORY, _set_factory), ("f", id(value)))
        if type(value) is not dict:
            self._attributes_of(value, path, is_container=True)

    def _list(self, value: Any, path: Path) -> None:
        self._push_items(self._hold(ListRow(value, path)))
        if isinstance(value, deque):
            self._hold(AttributeRow(value, path, _LENGTH, None), ("n", id(value)))
        if type(value) not in (list, deque):
            self._attributes_of(value, path, is_container=True)

    def _set(self, value: Any, path: Path) -> None:
        self._push_items(self._hold(SetRow(value, path)))
        if type(value) is not set:
            self._attributes_of(value, path, is_container=True)

    def _exception(self, value: BaseException, path: Path) -> None:
        row = self._hold(StateRow(value, path.attribute("args"), lambda error: error.args))
        self._stack.append((row.before[None], row.path))
        self._attributes_of(value, path, is_container=True)

    def _tuple(self, value: Any, path: Path) -> None:
        for index, item in enumerate(value):
            if type(item) not in ATOMIC and id(item) not in self.known:
                self._stack.append((item, path.item(index)))
        if instance_dict(value) is not None:
            self._attributes_of(value, path, is_container=True)
        elif type(value) not in (tuple, frozenset, torch.Size):
            self._class(type(value), Path(type(value).__name__))

    def _buffer(self, value: Any, path: Path) -> None:
        if isinstance(value, np.ndarray) and value.dtype == np.object_:
            self._hold(StateRow(value, path, lambda o: tuple(o.flat)))
            self._stack += [(item, path.item("...")) for item in value.flat]
        else:
            self._hold(BytesRow(value, path))

    def _tensor(self, value: torch.Tensor, path: Path) -> None:
        self.tensors[id(value)] = value
        if value.requires_grad:
            row = self._hold(AttributeRow(value, path, HOOKS_OF_TENSORS, None), ("t", id(value)))
            self._push_items(row)
        held = instance_dict(value)
        if held:
            self._namespace(held, path, ("u", id(value)))
        elif held is not None:  # most have no attributes, which is compared at the least cost
            self._hold(DictRow(held, path, attribute=True), ("u", id(value)))

    def _cell(self, value: types.CellType, path: Path) -> None:
        row = self._hold(CellRow(value, path))
        for item in row.before.values():
            self._stack.append((item, path))

    # Code ---------------------------------------------------------------------------------------

    def _function(self, value: types.FunctionType, path: Path) -> None:
        code = value.__code__
        self._functions.setdefault(code, []).append(value)
        owner = owner_of_code(code, value.__globals__)
        if owner is Owner.USER:
            self._push_items(self._hold(function_row(value, path)))
            self._hold_dict(value.__dict__, path, attribute=True)
            if "__annotations__" in self._words:
                self._hold_dict(value.__annotations__, path.attribute("__annotations__"))
        if self._elsewhere and owner is Owner.USER:
            self._unseen.append((code, value.__globals__))
        if code in self.codes:
            self._variables(value)
            self._variables_of(names_of(code).globals, value.__globals__, owner)
        elif owner is Owner.ENGINE and "__wrapped__" in value.__dict__:
            self._stack.append((value.__dict__["__wrapped__"], path))
            self._variables(value)

    def _variables(self, function: types.FunctionType) -> None:
        """The closure and the defaults of a function that runs."""
        if owner_of_code(function.__code__, function.__globals__) is not Owner.USER:
            cells = function.__closure__ or ()
            self._wrapped([v for cell in cells for v in _contents(cell)], function.__name__)
            return
        name = Path(function.__name__)
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        self._stack += [(cell, Path(variable)) for variable, cell in cells]
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self._stack += [(default, name) for default in defaults]

    def _wrapped(self, values: Iterable[Any], name: str) -> None:
        """What a library's function holds in its closure, as a decorator does."""
        for value in values:
            if is_program(value):
                self._stack.append((value, Path(name)))
            elif isinstance(value, _CONTAINERS):
                self._stack.append((value, Path(name, foreign=True)))

    def _method(self, value: types.MethodType, path: Path) -> None:
        own = Path("self") if path.parent is None and not path.key else path
        self._stack += [(value.__self__, own), (value.__func__, path)]

    def _builtin(self, value: types.BuiltinFunctionType, path: Path) -> None:
        owner = value.__self__
        if looks_names_up(value):
            self._look_anywhere()
        if differs(value):
            self.has_differing = True
            self.on_difference()
        elif owner is not None and not isinstance(owner, types.ModuleType | type):
            self._stack.append((owner, path))

    def _partial(self, value: functools.partial, path: Path) -> None:
        self._stack += [(value.func, path), (value.args, path), (value.keywords, path)]
        self._hold(StateRow(value, path, lambda p: (p.func, p.args, p.keywords)))

    def _descriptor(self, value: Any, path: Path) -> None:
        names = ("__func__", "fget", "fset", "fdel", "func", "__wrapped__")
        self._stack += [(getattr(value, n), path) for n in names if hasattr(value, n)]

    def _getter(self, value: Any, path: Path) -> None:
        self._use(frozenset(words_of_getter(value)))
        self._opaque(value, path)

    def _class(self, value: type, path: Path) -> None:
        if id(value) in self._classes:
            return
        if looks_names_up(value):
            self._look_anywhere()
        self._classes[id(value)] = value
        for base in value.__mro__:
            owner = owner_of_class(base)
            if isinstance(base, abc.ABCMeta) and ("a", id(base)) not in self.rows:
                self._hold(StateRow(base, Path(base.__name__), registered), ("a", id(base)))
            if owner is Owner.USER and ("c", id(base)) not in self.rows:
                self._class_itself(base)
            elif base is not object and ("c", id(base)) not in self.rows:
                self.known[id(base)] = base
                self._imply(home_of_class(base))
                if owner is Owner.PACKAGE:
                    self._functions_in(base)
                elif owner is Owner.ENGINE and issubclass(base, Module):
                    self._functional(functional_of(base))
                self._namespace(vars(base), Path(base.__name__, foreign=True), ("c", id(base)))

    def _class_itself(self, kind: type) -> None:
        self.known[id(kind)] = kind
        self._functions_in(kind)
        path = Path(kind.__name__)
        row = ClassRow(kind, path, self._everything if self._whole else self._words)
        self._hold(row, ("c", id(kind)))
        self._hold(AttributeRow(kind, path, _ORDER, None), ("o", id(kind)))
        if _FAMILY in self._words:
            self._subclasses(kind, path)
        self._namespaces.append(row)
        self._push_items(row)
        if type(kind) is not type:
            self._stack.append((type(kind), Path(type(kind).__name__)))

    def _functional(self, names: frozenset[str]) -> None:
        """Functions that PyTorch's modules call, which the user may have replaced."""
        key = ("x", id(FUNCTIONAL))
        row = self.rows.get(key)
        if not isinstance(row, NamedRow):
            row = NamedRow(vars(FUNCTIONAL), Path(FUNCTIONAL.__name__, foreign=True), set())
            self._hold(row, key)
        extend_with(row, names, self._stack)

    def _subclasses(self, kind: type, path: Path) -> None:
        row = StateRow(kind, path.attribute(_FAMILY), lambda k: tuple(type.__subclasses__(k)))
        self._hold(row, ("b", id(kind)))
        self._stack += [(below, Path(below.__name__)) for below in row.before[None]]

    def _functions_in(self, kind: type) -> None:
        for value in list(vars(kind).values()):
            for function in functions_of(value):
                if owner_of_class(kind) is Owner.USER:
                    self._stack.append((function, Path(kind.__name__).attribute(function.__name__)))
                else:
                    self._functions.setdefault(function.__code__, []).append(function)

    def _module(self, value: types.ModuleType, path: Path) -> None:
        if owner_of_module(value) is Owner.USER:
            self._namespace(vars(value), path, ("m", id(value)), self._anywhere)
            return
        path = Path(value.__name__, foreign=True)
        self._namespace(vars(value), path, ("m", id(value)))
        self._libraries.append((value, path))
        self._look_in_library(value, path, self._words)
        self._imply(value.__name__)

    def _imply(self, module: str) -> None:
        """Hold what a library's module goes by."""
        name = _IMPLIED.get(module)
        if name is not None and ("i", module) not in self.rows:
            held = vars(sys.modules[module])
            path = Path(module, foreign=True).attribute(name)
            self._hold(StateRow(held, path, lambda held: _told(held[name])), ("i", module))

    def _registries(self, value: Any, path: Path) -> None:
        """Dicts in which a package looks up what to call."""
        for found in registries_in(value):
            if id(found) not in self.rows:
                row = self._hold(DictRow(found, path))
                own = (v for v in row.before.values() if _is_users_code(v))
                self._stack += [(one, Path(path.key)) for one in own]

    def _look_in_library(self, module: types.ModuleType, path: Path, words: Iterable[str]) -> None:
        held = vars(module)
        registers = owner_of_module(module) is Owner.PACKAGE
        for name in words:
            value = held.get(name)
            if registers and value is not None and type(value) not in ATOMIC:
                self._registries(value, path.attribute(name))
            if is_setting(value, name):
                self._hold_setting(value, path.attribute(name))
            elif name in vars(type(module)) and not hasattr(types.ModuleType, name):
                read = functools.partial(_read_attribute, name=name)
                self._hold(StateRow(module, path.attribute(name), read), ("p", id(module), name))
            if value is None or type(value) in ATOMIC or id(value) in self.known:
                continue
            if matters_in_library(value) or finds_modules(value):
                home = Path(name) if home_of_class(type(value)) == "os" else path.attribute(name)
                if isinstance(value, list) and self._is_users_to_change(module, name):
                    home = Path(module.__name__).attribute(name)
                self._stack.append((value, home))

    def _is_users_to_change(self, module: types.ModuleType, name: str) -> bool:
        """Whether the program itself names what a module of Python's holds, as `sys.path`."""
        return name in self._own_words and owner_of_module(module) is Owner.PYTHON

    def _hold_setting(self, getter: Any, path: Path) -> None:
        """A setting of a library's that a function without arguments tells."""
        if ("v", id(getter)) not in self.rows and setting_of(getter) is not MISSING:
            self.known[id(getter)] = getter
            self._hold(StateRow(getter, path, setting_of), ("v", id(getter)))

    def _namespace(
        self, held: dict[str, Any], path: Path, key: Any, everything: bool = False
    ) -> None:
        if key in self.rows:
            return
        row = NamedRow(held, path, self._everything if everything else self._words)
        self._hold(row, key)
        self._namespaces.append(row)
        if not path.foreign:
            self._push_items(row)

    # Objects ------------------------------------------------------------------------------------

    def _nn_module(self, value: Module, path: Path) -> None:
        held = vars(value)
        row = self._hold(DictRow(held, path, attribute=True))
        self.known[id(held)] = held
        for name, item in row.before.items():
            if type(item) in ATOMIC:
                continue
            if name in _MEMBERS:
                self._members(item, path.members(name))
            else:
                self._stack.append((item, path.attribute(name)))
        self._own_dict(value, path)
        self._kind_of(value, path)

    def _members(self, held: dict[str, Any], path: Path) -> None:
        if id(held) not in self.known:
            self.known[id(held)] = held
            row = self._hold(DictRow(held, path, attribute=True))
            self._stack += [(item, path.attribute(name)) for name, item in row.before.items()]

    def _optimizer(self, value: Optimizer, path: Path) -> None:
        held = vars(value)
        if id(held) not in self.known:
            self._hold_dict(held, path, attribute=True)
        self._own_dict(value, path)
        self._kind_of(value, path)

    def _object(self, value: Any, path: Path) -> None:
        kind = type(value)
        owner = owner_of_class(kind)
        if owner is Owner.ENGINE and not is_of_the_user(kind):
            return self._engines(value, path)
        if home_of_class(kind).partition(".")[0] in _QUIET:
            return self._handlers(value, path) if isinstance(value, logging.Logger) else None
        if moves(value):
            return self._opaque(value, path)
        self._attributes_of(value, path)
        return None

    def _handlers(self, logger: logging.Logger | None, path: Path) -> None:
        """The program's own handlers of what is logged, and what loggers are set to."""
        while logger is not None:
            row = AttributeRow(logger, path, _SETTINGS_OF_LOGGERS, _set_logger)
            self._hold(row, ("l", id(logger)))
            own = (h for h in logger.handlers if owner_of_class(type(h)) is Owner.USER)
            self._stack += [(handler, path.attribute("handlers")) for handler in own]
            logger = logger.parent if logger.propagate else None

    def _engines(self, value: Any, path: Path) -> None:
        inner = getattr(type(value), "__calque_state__", None)
        if inner is not None:
            self._stack.append((inner(value), path))

    def _attributes_of(self, value: Any, path: Path, is_container: bool = False) -> None:
        kind = type(value)
        held = instance_dict(value)
        slots = _slots_of(kind)
        if held is None and not slots and not is_container:
            self._opaque(value, path)
            return
        self._kind_of(value, path)
        if held is not None:
            if owner_of_class(kind) is Owner.USER or not is_container:
                self._own_dict(value, path)
            if owner_of_class(kind) is Owner.USER and not self._whole:
                self.known[id(held)] = held
                self._namespace(held, path, ("d", id(value)))
            else:
                self._hold_dict(held, path, attribute=True)
        if slots:
            row = AttributeRow(value, path, slots, set_attribute)
            self._push_items(self._hold(row, ("s", id(value))))

    def _kind_of(self, value: Any, path: Path) -> None:
        kind = type(value)
        if owner_of_class(kind) is Owner.USER:
            self._hold(AttributeRow(value, path, _KIND, set_attribute), ("k", id(value)))
        self._class(kind, Path(kind.__name__))

    def _own_dict(self, value: Any, path: Path) -> None:
        """Hold that an object's dict is its own: `value.__dict__ = {...}` writes to no dict."""
        self._hold(AttributeRow(value, path, _OWN_DICT, set_attribute), ("h", id(value)))

    def _cache(self, value: Any, path: Path) -> None:
        if not path.foreign:
            self._hold(CacheRow(value, path))
            self._stack.append((value.__wrapped__, path))

    def _opaque(self, value: Any, path: Path) -> None:
        self._imply(home_of_class(type(value)))
        if owner_of_class(type(value)) is Owner.ENGINE and not is_random(value):
            return
        how = opaque(value)
        if how is None:
            self._stack += [(item, path) for item in _referents(value)]
            return
        row = self._hold(StateRow(value, path, how.read, how.write))
        row.guarded = how.guarded or (moves(value) and not _READS_OF_STATE.isdisjoint(self._words))
        if how.guarded is False and moves(value):
            self.moving.append(row)
        self._stack += [(item, path) for item in how.inner]

    def _enum(self, value: Any, path: Path) -> None:
        self._kind_of(value, path)
        self._namespace(vars(value), path, ("d", id(value)))

    def _weak(self, value: weakref.ref, path: Path) -> None:
        target = value()
        if target is not None:
            self.weak[id(target)] = target
            self._stack.append((target, path))

    def _proxy(self, value: Any, path: Path) -> None:
        try:
            target = value.__init__.__self__  # of the object that it stands for
        except (ReferenceError, AttributeError):  # it has died, or has attributes of its own making
            return
        self.weak[id(target)] = target
        self._stack.append((target, path))

    def _weak_container(self, value: Any, path: Path) -> None:
        if not path.foreign:
            self._stack.append((value.data, path))

    def _context(self, value: contextvars.ContextVar[Any], path: Path) -> None:
        row = self._hold(ContextRow(value, path))
        self._stack += [(item, path) for item in row.before.values()]

    def _local(self, value: threading.local, path: Path) -> None:
        self._push_items(self._hold(LocalRow(value, path)))

    def _nothing(self, value: Any, path: Path) -> None:
        pass

    # Code that runs -----------------------------------------------------------------------------

    def enter(
        self,
        code: types.CodeType,
        held: dict[str, Any],
        caller: Any = None,
        closure: Callable[[], dict[str, Any]] = dict,
    ) -> bool:
        """A code object starts for the first time, with these global variables.

        Args:
            caller: the code that called it, if that is known.
            closure: gives the values of its free variables.

        Returns:
            Whether it is code of the program's, or code that the program has called of Python's.
        """
        owner = owner_of_code(code, held)
        if owner is Owner.ENGINE:
            return False
        if owner is Owner.PYTHON and caller is not None and caller not in self.codes:
            return False
        self.codes[code] = owner
        if owner is Owner.PYTHON and hands_over(code, held):
            self.follow_all()
        self._read_names(code, held, owner, closure)
        self._drain()
        return True

    def _read_names(
        self,
        code: types.CodeType,
        held: dict[str, Any],
        owner: Owner,
        closure: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        names = names_of(code)
        self._nested.update(names.nested)
        if owner is Owner.USER:
            self._own_words |= names.words
            self._imports(code)
            if "modules" in names.words:  # of `sys`, which it may ask for those that it names
                self._expect_modules(c for c in code.co_consts if isinstance(c, str))
        self._variables_of(names.globals, held, owner)
        functions = self._functions_with(code, owner)
        if not functions and owner is not Owner.USER and code not in self._nested:
            self._wrapped(closure().values(), code.co_name)
        for function in functions:
            self._variables(function)
            if function.__globals__ is not held:  # the same text, executed in two namespaces
                self._variables_of(names.globals, function.__globals__, owner)
        self._use(names.words)
        if owner is Owner.USER:
            self.compares_objects |= names.compares
            self.asks_identity |= not _IDENTITY.isdisjoint(names.globals)
            self._look_up(names, held)

    def follow_all(self) -> None:
        """Let each function of the user's that is met count as one that runs, also before it does.

        So it is where another thread runs something, of which nobody sees what it is and when.
        """
        if not self._elsewhere:
            self._elsewhere = True
            met = [function for functions in self._functions.values() for function in functions]
            self._unseen += [(f.__code__, f.__globals__) for f in met]

    def _read(self, code: types.CodeType, held: dict[str, Any]) -> None:
        """Take code for some that runs."""
        if code not in self.codes and owner_of_code(code, held) is Owner.USER:
            self.codes[code] = Owner.USER
            self._unseen += [(nested, held) for nested in names_of(code).nested]
            self._read_names(code, held, Owner.USER)

    def _variables_of(self, names: frozenset[str], held: dict[str, Any], owner: Owner) -> None:
        """The global variables that code names."""
        if owner is Owner.USER:
            self._global_variables(names, held)
        else:
            self._library_variables(names, held, owner)

    def _imports(self, code: types.CodeType) -> None:
        """Modules that a statement in the code imports, as far as they have been."""
        for name in code.co_names:
            module = sys.modules.get(name)
            if module is not None and owner_of_module(module) is Owner.USER:
                self._stack.append((module, Path(name)))
                self._imported(name, module)

    def _imported(self, name: str, module: types.ModuleType) -> None:
        """A statement finds a module under a name, where another may stand later."""
        self._expect_modules((name,)).before.setdefault(name, module)

    def _expect_modules(self, names: Iterable[str]) -> NamedRow:
        """Hold which modules there are under some names, or that there are none."""
        row = self.rows.get(("g", id(sys.modules)))
        if not isinstance(row, NamedRow):
            path = Path("sys.modules", foreign=True)  # an import is not undone
            row = NamedRow(sys.modules, path, set())
            self._hold(row, ("g", id(sys.modules)))
        extend_with(row, names, self._stack)
        return row

    def look_again(self) -> None:
        """Meet the modules that were imported meanwhile."""
        for code, owner in self.codes.items():
            if owner is Owner.USER:
                self._imports(code)
        self._drain()

    def _functions_with(self, code: types.CodeType, owner: Owner) -> list[types.FunctionType]:
        known = self._functions.get(code, [])
        if known or owner is not Owner.USER or not code.co_freevars or code in self._nested:
            return known
        # The program's own, and reached by nothing that was met. This looks at all objects there
        # are; the values of its variables would be at hand, but not the cells that hold them.
        return [f for f in gc.get_referrers(code) if isinstance(f, types.FunctionType)]

    def _global_variables(self, names: frozenset[str], held: dict[str, Any]) -> None:
        key = ("g", id(held))
        row = self.rows.get(key)
        if not isinstance(row, NamedRow):
            row = NamedRow(held, Path(""), set())
            self._hold(row, key)
        if not isinstance(row.names, set):
            return
        for name in names.difference(row.names):
            row.names.add(name)
            if name in held:
                value = row.before[name] = held[name]
                self._stack.append((value, Path(name)))
                if is_setting(value, name) and owner_of_name(value.__module__ or "") < Owner.USER:
                    self._hold_setting(value, Path(name))
            else:
                self._found_in_builtins(name)

    def _found_in_builtins(self, name: str) -> None:
        """Code names what Python itself has, or what a program has put there."""
        held = vars(builtins)
        if name not in held:
            return
        row = self.rows.get(("g", id(held)))
        if not isinstance(row, NamedRow):
            row = NamedRow(held, Path("builtins", foreign=True), set())
            self._hold(row, ("g", id(held)))
        extend_with(row, (name,), self._stack)
        if not isinstance(held[name], types.BuiltinFunctionType | type):
            self._stack.append((held[name], Path(name)))

    def _library_variables(self, names: Iterable[str], held: dict[str, Any], owner: Owner) -> None:
        found = {name: held[name] for name in names if name in held}
        for name, value in found.items():
            if type(value) in ATOMIC:
                continue
            if owner is Owner.PACKAGE:
                self._registries(value, Path(name, foreign=True))
            if matters_in_library(value):
                foreign = home_of_class(type(value)) != "os"
                self._stack.append((value, Path(name, foreign=foreign)))
        scalars = {n for n, v in found.items() if type(v) in ATOMIC and owner is Owner.PACKAGE}
        if not scalars:
            return
        key = ("g", id(held))
        row = self.rows.get(key)
        if not isinstance(row, NamedRow):
            path = Path(str(held.get("__name__", "")), foreign=True)
            row = self._hold(NamedRow(held, path, set()), key)
        assert isinstance(row, NamedRow)
        assert isinstance(row.names, set)
        row.before |= {name: held[name] for name in scalars - row.names}
        row.names |= scalars

    def _use(self, words: frozenset[str]) -> None:
        """More names of attributes matter from now on."""
        fresh = words - self._words
        if not _READS_OF_STATE.isdisjoint(fresh):
            for row in self.moving:
                row.guarded = True
        self._words |= fresh
        extend_with(self._methods, fresh - METHODS_OF_TENSORS, self._stack)
        if _FAMILY in fresh:
            for row in [row for row in self.rows.values() if isinstance(row, ClassRow)]:
                self._subclasses(row.kind, row.path)
        if "__annotations__" in fresh:
            for function in (f for functions in self._functions.values() for f in functions):
                if owner_of_code(function.__code__, function.__globals__) is Owner.USER:
                    self._hold_dict(function.__annotations__, Path(function.__name__))
        for row in self._namespaces:
            for name in fresh & row.owner.keys():
                value = row.before.setdefault(name, row.owner[name])
                if row.path.foreign:
                    continue
                if type(value) not in ATOMIC and id(value) not in self.known:
                    self._stack.append((value, row.path.attribute(name)))
        for module, path in self._libraries:
            self._look_in_library(module, path, fresh)

    # Names that are computed ----------------------------------------------------------------------

    def _look_up(self, names: Names, held: dict[str, Any]) -> None:
        """Code looks things up by names that it does not contain."""
        if names.anywhere:
            self._look_anywhere()
        elif names.whole:
            self._look_into_objects()
        for name in names.looked_into:
            value = held.get(name)
            if isinstance(value, types.ModuleType) and owner_of_module(value) is Owner.USER:
                self._namespace(vars(value), Path(name), ("m", id(value)))
                self._extend(("m", id(value)))
        if names.namespace:
            self._extend(("g", id(held)))

    def _look_into_objects(self) -> None:
        """All attributes of the user's objects and classes matter, whatever their names."""
        if self._whole:
            return
        self._whole = True
        for key, row in list(self.rows.items()):
            mark = key[0] if isinstance(key, tuple) else None
            if mark in ("d", "u") and isinstance(row, NamedRow):
                before = row.before
                self._namespaces = [r for r in self._namespaces if r is not row]
                new = DictRow(row.owner, row.path, attribute=True)
                new.before = {**new.before, **before}
                self.rows[key] = new
                self._push_items(new)
            elif mark == "c" and isinstance(row, ClassRow):
                self._extend(key)

    def _look_anywhere(self) -> None:
        """All that the user's modules hold matters, too."""
        self._look_into_objects()
        if not self._anywhere:
            self._anywhere = True
            for key in [k for k in self.rows if isinstance(k, tuple) and k[0] == "m"]:
                self._extend(key)

    def _extend(self, key: Any) -> None:
        """All names of a namespace of the user's matter."""
        row = self.rows[key]
        if isinstance(row, NamedRow) and not row.path.foreign:
            row.names = self._everything
            row.before = {**row.items(), **row.before}
            self._push_items(row)

    # Afterwards ---------------------------------------------------------------------------------

    def changed(self) -> Iterator[tuple[Row, dict[Any, Any]]]:
        """The rows that hold something else than they did, with what they hold."""
        for row in list(self.rows.values()):
            now = row.items()
            if row.is_changed(now):
                yield row, now

    def restore(self) -> list[Row]:
        """Put everything back; gives the rows that cannot be."""
        left = []
        for row, _ in list(self.changed()):
            if row.restored:
                row.restore()
                if row.is_changed():
                    left.append(row)
        return left


_KIND: dict[str, Callable[[Any], Any]] = {"__class__": type}
_OWN_DICT: dict[str, Callable[[Any], Any]] = {"__dict__": instance_dict}
_ORDER: dict[str, Callable[[Any], Any]] = {
    "__mro__": lambda kind: kind.__mro__,
    "__name__": lambda kind: kind.__name__,
}
_SETTINGS_OF_LOGGERS: dict[str, Callable[[Any], Any]] = {
    "level": lambda logger: logger.level,
    "disabled": lambda logger: logger.disabled,
    "propagate": lambda logger: logger.propagate,
}
_LENGTH: dict[str, Callable[[Any], Any]] = {"maxlen": lambda d: d.maxlen}
_FACTORY: dict[str, Callable[[Any], Any]] = {"default_factory": lambda d: d.default_factory}
_WEAK_CONTAINERS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_CONTAINERS = (dict, list, set, types.MappingProxyType)
HOOKS_OF_TENSORS: dict[str, Callable[[Any], Any]] = {
    "_backward_hooks": lambda t: t._backward_hooks,
    "_post_accumulate_grad_hooks": lambda t: t._post_accumulate_grad_hooks,
}
_GLOBAL_HOOKS = [
    (place, name)
    for place in (module_of_torch, optimizer_of_torch)
    for name, value in vars(place).items()
    if name.startswith("_global_") and isinstance(value, dict)
]


def _set_factory(owner: defaultdict[Any, Any], name: str, value: Any) -> None:
    owner.default_factory = value


def _set_logger(owner: logging.Logger, name: str, value: Any) -> None:
    if name == "level":
        owner.setLevel(value)  # loggers keep what they found out of the levels above them
    else:
        setattr(owner, name, value)


def _is_users_code(value: Any) -> bool:
    home = getattr(value, "__module__", None)
    return isinstance(home, str) and owner_of_name(home) is Owner.USER


def _told(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else setting_of(value)


def _read_attribute(owner: Any, name: str) -> Any:
    value = getattr(owner, name, None)
    return value if type(value) in ATOMIC else None


def _contents(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


@functools.lru_cache(maxsize=4096)
def _slots_of(kind: type) -> dict[str, Callable[[Any], Any]]:
    """What reads each slot of a class's objects."""
    found: dict[str, Callable[[Any], Any]] = {}
    for base in kind.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, types.MemberDescriptorType) and owner_of_class(base) is Owner.USER:
                found.setdefault(name, lambda o, get=value.__get__: get(o))
    return found


def _referents(value: Any) -> list[Any]:
    found = gc.get_referents(value)
    return [item for item in found if not isinstance(item, type | types.ModuleType)]


_HANDLERS: dict[type, Callable[[Snapshot, Any, Path], None]] = {
    dict: Snapshot._dict,
    list: Snapshot._list,
    tuple: Snapshot._tuple,
    set: Snapshot._set,
    frozenset: Snapshot._tuple,
    types.CellType: Snapshot._cell,
    types.FunctionType: Snapshot._function,
    types.MethodType: Snapshot._method,
    types.BuiltinFunctionType: Snapshot._builtin,
    types.ModuleType: Snapshot._module,
    torch.Tensor: Snapshot._tensor,
    torch.nn.Parameter: Snapshot._tensor,
    weakref.ProxyType: Snapshot._proxy,
    weakref.CallableProxyType: Snapshot._proxy,
}
_KINDS: list[tuple[Any, Callable[[Snapshot, Any, Path], None]]] = [
    (torch.Tensor, Snapshot._tensor),
    (Module, lambda snapshot, value, path: snapshot._nn_module(value, path)),
    (Optimizer, Snapshot._optimizer),
    (enum.Enum, Snapshot._enum),
    (type, Snapshot._class),
    (dict, Snapshot._dict),
    (list | deque, Snapshot._list),
    (tuple, Snapshot._tuple),
    (set, Snapshot._set),
    (frozenset, Snapshot._tuple),
    (BaseException, Snapshot._exception),
    (bytearray | array.array | np.ndarray, Snapshot._buffer),
    (types.ModuleType, Snapshot._module),
    (functools.partial, Snapshot._partial),
    (functools._lru_cache_wrapper, Snapshot._cache),
    (
        (property, functools.cached_property, functools.partialmethod, *WRAPPERS),
        Snapshot._descriptor,
    ),
    (weakref.ref, Snapshot._weak),
    (_WEAK_CONTAINERS, Snapshot._weak_container),
    (threading.local, Snapshot._local),
    (GETTERS, Snapshot._getter),
    (contextvars.ContextVar, Snapshot._context),
    (np.generic | torch._C.Generator | types.CodeType | types.FrameType, Snapshot._nothing),
    (types.MappingProxyType, lambda s, v, p: s._stack.extend((i, p) for i in _referents(v))),
]
