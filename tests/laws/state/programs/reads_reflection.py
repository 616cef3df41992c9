"""L1: values read without being named: by text, by C functions, by patterns, in other frames."""

import copy
import dataclasses
import functools
import importlib
import operator
import pickle
import string
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from tests.laws.state import settings
from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("reads", "jit rows")
Seen = Iterator[Any]


class Config:
    def __init__(self, **values):
        self.__dict__.update(values)


def _gains(case: Case, f: Any, owner: Any) -> Seen:
    """Calls with `owner.gain` of 2, 2, 3, 5 and 2."""
    f = case.fn(f)
    for owner.gain in (2.0, 2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def getattr_with_a_name_that_is_computed(case: Case) -> Seen:
    cfg = Config(gain=2.0)
    yield from _gains(case, lambda x: x * getattr(cfg, "ga" + "in"[:2]), cfg)


@program(states=3)
def path_followed_by_reduce(case: Case) -> Seen:
    cfg = Config(inner=Config(gain=2.0))
    path = "inner.gain"
    yield from _gains(
        case, lambda x: x * functools.reduce(getattr, path.split("."), cfg), cfg.inner
    )


@program(states=3)
def attribute_getter_of_operator_with_dots(case: Case) -> Seen:
    cfg = Config(inner=Config(gain=2.0))
    get = operator.attrgetter("inner.gain")
    yield from _gains(case, lambda x: x * get(cfg), cfg.inner)


@program(states=3)
def method_caller_of_operator(case: Case) -> Seen:
    class Layer:
        gain = 2.0

        def scale(self, x):
            return x * self.gain

    layer = Layer()
    call = operator.methodcaller("scale", torch.ones(3, device=case.device))
    yield from _gains(case, lambda x: x + call(layer), layer)


@program(states=3)
def namespace_of_an_object_by_vars(case: Case) -> Seen:
    cfg = Config(gain=2.0, name="a")
    yield from _gains(case, lambda x: x * vars(cfg)["gain"] + len(cfg.__dict__), cfg)


@program(states=3)
def attributes_listed_by_dir(case: Case) -> Seen:
    cfg = Config(gain_a=2.0)

    def f(x):
        for name in dir(cfg):
            if name.startswith("gain"):
                x = x * getattr(cfg, name)
        return x

    f = case.fn(f)
    yield f(case.x)
    cfg.gain_b = 3.0
    yield f(case.x)
    cfg.gain_a = 5.0
    yield f(case.x)


@program(states=3)
def eval_of_an_expression(case: Case) -> Seen:
    cfg = Config(gain=2.0)
    yield from _gains(case, lambda x: x * eval("cfg.gain", {"cfg": cfg}), cfg)


@program(states=3)
def text_formatted_with_attributes(case: Case) -> Seen:
    cfg = Config(gain=2.0)
    yield from _gains(case, lambda x: x * float("{0.gain}".format(cfg)), cfg)  # noqa: UP030, UP032


@program(states=3)
def template_of_text(case: Case) -> Seen:
    values = {"gain": "2"}
    template = string.Template("$gain")
    f = case.fn(lambda x: x * float(template.substitute(values)))
    for values["gain"] in ("2", "2", "3", "5", "2"):
        yield f(case.x)


GAIN = 2.0


@program(states=3)
def global_by_its_name(case: Case) -> Seen:
    yield from _gains(case, lambda x: x * globals()["REFLECTED"], _Globals("REFLECTED"))


class _Globals:
    """Sets a global of this module by an attribute."""

    def __init__(self, name):
        self.__dict__["name"] = name

    def __setattr__(self, name, value):
        globals()[self.name] = value

    gain = 0.0


@program(states=3)
def module_found_by_its_name(case: Case) -> Seen:
    case.patch(settings, "gain", 2.0)
    name = settings.__name__
    yield from _gains(case, lambda x: x * sys.modules[name].gain, settings)


@program(states=3)
def module_imported_by_its_name(case: Case) -> Seen:
    case.patch(settings, "gain", 2.0)
    name = settings.__name__
    yield from _gains(case, lambda x: x * importlib.import_module(name).gain, settings)


@program(states=3)
def local_of_the_caller(case: Case) -> Seen:
    def read():
        return sys._getframe(1).f_locals["own"].gain

    cfg = Config(gain=2.0)

    def f(x):
        own = cfg
        return x * read() + len([own]) - 1

    yield from _gains(case, f, cfg)


@program(states=3)
def pickled_and_copied(case: Case) -> Seen:
    cfg = types.SimpleNamespace(gain=2.0)

    def f(x):
        return x * pickle.loads(pickle.dumps(cfg)).gain + copy.deepcopy(cfg).gain

    yield from _gains(case, f, cfg)


@program(states=3)
def text_of_an_object(case: Case) -> Seen:
    cfg = types.SimpleNamespace(gain=2.0)
    yield from _gains(case, lambda x: x + sum(map(ord, repr(cfg))), cfg)


@program(states=3)
def hash_of_a_frozen_value(case: Case) -> Seen:
    cfg = Config(gain=2.0)
    yield from _gains(case, lambda x: x + hash((cfg.gain, 1)) % 101, cfg)


@program(states=3)
def pattern_of_a_class(case: Case) -> Seen:
    @dataclasses.dataclass
    class Point:
        gain: float
        name: str = "p"

    point = Point(2.0)

    def f(x):
        match point:
            case Point(gain=3.0):
                return x * 30
            case Point(gain, "p"):
                return x * gain
        return x

    yield from _gains(case, f, point)


@program(states=3)
def pattern_of_a_mapping(case: Case) -> Seen:
    cfg: dict[str, Any] = {"kind": "scale", "by": 2.0}

    def f(x):
        match cfg:
            case {"kind": "scale", "by": by}:
                return x * by
            case {"kind": "shift", **rest}:
                return x + len(rest)
        return x

    f = case.fn(f)
    yield f(case.x)
    cfg["kind"] = "shift"
    yield f(case.x)
    cfg["more"] = 1
    yield f(case.x)


@program(states=3)
def builtin_under_another_name(case: Case) -> Seen:
    cfg, get, name = Config(gain=2.0), getattr, "ga"
    yield from _gains(case, lambda x: x * get(cfg, name + "in"), cfg)


@program(states=3)
def class_attribute_by_a_computed_name(case: Case) -> Seen:
    class Own:
        gain = 2.0

    own, name = Own(), "ga"
    yield from _gains(case, lambda x: x * getattr(own, name + "in"), Own)


@program(states=3)
def module_attribute_by_a_computed_name(case: Case) -> Seen:
    case.patch(settings, "gain", 2.0)
    name = "ga"
    yield from _gains(case, lambda x: x * getattr(settings, name + "in"), settings)


@program(states=3)
def global_by_a_computed_name(case: Case) -> Seen:
    name = "REFLEC"
    yield from _gains(case, lambda x: x * globals()[name + "TED"], _Globals("REFLECTED"))


@program(states=3)
def format_that_stands_in_a_variable(case: Case) -> Seen:
    cfg, text = Config(gain=2.0), "{0.gain}"
    yield from _gains(case, lambda x: x * float(text.format(cfg)), cfg)


@program(states=2)
def attribute_that_comes_for_another(case: Case) -> Seen:
    cfg = Config(other=1.0)
    f = case.fn(lambda x: x * 2 if hasattr(cfg, "gain") else x)
    yield f(case.x)
    yield f(case.x)
    del cfg.other
    cfg.gain = 2.0
    yield f(case.x)
    del cfg.gain
    cfg.other = 1.0
    yield f(case.x)
