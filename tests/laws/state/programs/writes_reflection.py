"""L2: what a call changes without naming it, and objects that change place or are shared."""

import functools
import logging
import operator
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state import settings
from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("writes", "jit rows")
Seen = Iterator[Any]


class Config:
    def __init__(self, **values):
        self.__dict__.update(values)


def _turns(case: Case, f: Any, look: Any) -> Seen:
    """Five calls of a function that goes back and forth between two states."""
    f = case.fn(f)
    for i in range(5):
        yield f(case.x + i), look()


@program(states=2)
def setattr_with_a_name_that_is_computed(case: Case) -> Seen:
    s = Config(turn=0)

    def f(x):
        setattr(s, "tu" + "rn", 1 - getattr(s, "tu" + "rn"))
        return x * s.turn

    yield from _turns(case, f, lambda: s)


@program(states=2)
def namespace_of_an_object_written(case: Case) -> Seen:
    s = Config(turn=0)

    def f(x):
        vars(s)["turn"] = 1 - s.turn
        s.__dict__.update(last="a")
        return x * s.turn

    yield from _turns(case, f, lambda: s)


@program(states=2)
def object_that_guards_its_attributes(case: Case) -> Seen:
    class Frozen:
        def __init__(self):
            object.__setattr__(self, "turn", 0)

        def __setattr__(self, name, value):
            raise AttributeError("frozen")

        def flip(self):
            object.__setattr__(self, "turn", 1 - self.turn)
            return self.turn

    s = Frozen()
    yield from _turns(case, lambda x: x * s.flip(), lambda: s)


@program(states=2)
def property_with_a_setter(case: Case) -> Seen:
    class Switch:
        def __init__(self):
            self._on, self.sets = False, 0

        @property
        def on(self):
            return self._on

        @on.setter
        def on(self, value):
            self._on = value
            self.sets = 1 - self.sets

    s = Switch()

    def f(x):
        s.on = not s.on
        return x if s.on else -x

    yield from _turns(case, f, lambda: s)


@program(states=2)
def operators_that_write(case: Case) -> Seen:
    table = {"turn": 0, "names": ["a"]}

    def f(x):
        operator.setitem(table, "turn", 1 - table["turn"])
        names = table["names"]
        names += ["b"]
        operator.delitem(names, slice(1, None))
        return x * table["turn"]

    yield from _turns(case, f, lambda: table)


@program(states=4)
def merged_dictionaries(case: Case) -> Seen:
    table: dict[str, Any] = {"a": 1}

    def f(x):
        nonlocal table
        table |= {"b": len(table)}
        table = {**table, "a": 1 - table["a"]}
        return x * table["b"] + table["a"]

    f = case.fn(f)
    for i in range(4):
        yield f(case.x + i), table


@program(each_call=True)
def global_written_by_its_name(case: Case) -> Seen:
    globals()["TURNED"] = 0
    case.undo(globals().pop, "TURNED", None)

    def f(x):
        globals()["TURNED"] = 1 - globals()["TURNED"]
        return x * globals()["TURNED"]

    yield from _turns(case, f, lambda: globals()["TURNED"])


@program(states=2)
def global_of_another_module_written(case: Case) -> Seen:
    case.patch(settings, "turn", 0)

    def f(x):
        settings.turn = 1 - settings.turn
        return x * settings.turn

    yield from _turns(case, f, lambda: settings.turn)


@program(states=2)
def executed_text_that_writes(case: Case) -> Seen:
    space = {"turn": 0}

    def f(x):
        exec("turn = 1 - turn", space)
        return x * space["turn"]

    yield from _turns(case, f, lambda: space["turn"])


@program(each_call=True)
def environment_written(case: Case) -> Seen:
    def f(x):
        os.environ["LAWS_TURN"] = "1" if os.environ.get("LAWS_TURN", "0") == "0" else "0"
        return x * int(os.environ["LAWS_TURN"])

    yield from _turns(case, f, lambda: os.environ.get("LAWS_TURN"))


@program(each_call=True)
def local_of_a_thread_written(case: Case) -> Seen:
    local = threading.local()
    local.turn = 0

    def f(x):
        local.turn = 1 - local.turn
        return x * local.turn

    yield from _turns(case, f, lambda: local.turn)


@program(each_call=True)
def weak_dictionary_filled(case: Case) -> Seen:
    m = nn.Identity()
    table: Any = weakref.WeakKeyDictionary()

    def f(x):
        first = m not in table
        table[m] = "seen"
        return x * 10 if first else x

    f = case.fn(f)
    for _ in range(3):
        yield f(case.x), len(table)
    table.clear()
    yield f(case.x), len(table)


@program(each_call=True)
def function_with_a_cache_called_inside(case: Case) -> Seen:
    calls = []

    @functools.cache
    def table(n):
        calls.append(n)
        return n * 2

    f = case.fn(lambda x: x * table(x.shape[0]))
    for n in (3, 2, 3, 2):
        yield f(case.x[:n]), calls, table.cache_info().currsize


@program(each_call=True)
def method_with_a_cache(case: Case) -> Seen:
    class Tables:
        @functools.lru_cache(maxsize=1)  # noqa: B019
        def table(self, n):
            return torch.ones(n)

    tables = Tables()
    f = case.fn(lambda x: x + tables.table(x.shape[0]).to(x.device))
    for n in (3, 2, 3, 2):
        yield f(case.x[:n]), Tables.table.cache_info().currsize


@program(each_call=True)
def level_of_a_logger_set(case: Case) -> Seen:
    logger = logging.getLogger("tests.laws.level")
    logger.setLevel(logging.INFO)

    def f(x):
        on = logger.level == logging.INFO
        logger.setLevel(logging.ERROR if on else logging.INFO)
        return x if on else -x

    yield from _turns(case, f, lambda: logger.level)


@program(each_call=True)
def filter_of_warnings_added(case: Case) -> Seen:
    def f(x):
        known = any(entry[2] is ResourceWarning for entry in warnings.filters)
        if not known:
            warnings.simplefilter("ignore", ResourceWarning)
        return x if known else -x

    f = case.fn(f)
    for _ in range(3):
        yield f(case.x), sum(entry[2] is ResourceWarning for entry in warnings.filters)


@program(each_call=True)
def search_path_extended_once(case: Case) -> Seen:
    case.undo(lambda: "/laws" in sys.path and sys.path.remove("/laws"))

    def f(x):
        if "/laws" in sys.path:
            return x
        sys.path.append("/laws")
        return -x

    f = case.fn(f)
    for _ in range(3):
        yield f(case.x), sys.path.count("/laws")
    sys.path.remove("/laws")
    yield f(case.x), sys.path.count("/laws")
