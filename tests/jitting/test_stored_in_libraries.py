"""What a program stores in modules, classes and functions of libraries is repeated by each call."""

import builtins
import collections
import importlib
import json
import re
import sys
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import calque

NAME = "stored_by_a_test"


def counts_in_a_module(x):
    json.stored_by_a_test = getattr(json, "stored_by_a_test", 0) + 1
    return x * 2


def reads_its_count(x):
    torch.stored_by_a_test = getattr(torch, "stored_by_a_test", 0) + 1
    return x * torch.stored_by_a_test


def halves_a_number(x):
    np.stored_by_a_test = getattr(np, "stored_by_a_test", 1.0) * 0.5
    return x * np.stored_by_a_test


def counts_in_a_class(x):
    nn.Linear.stored_by_a_test = getattr(nn.Linear, "stored_by_a_test", 0) + 1
    return x + 1


def counts_in_a_class_of_python(x):
    kind = collections.Counter
    kind.stored_by_a_test = getattr(kind, "stored_by_a_test", 0) + 1
    return x * kind.stored_by_a_test


def counts_in_the_class_of_tensors(x):
    torch.Tensor.stored_by_a_test = getattr(torch.Tensor, "stored_by_a_test", 0) + 1
    return x * 2


def counts_among_the_builtins(x):
    builtins.stored_by_a_test = getattr(builtins, "stored_by_a_test", 0) + 1
    return x * 2


def counts_in_a_function(x):
    F.relu.stored_by_a_test = getattr(F.relu, "stored_by_a_test", 0) + 1
    return F.relu(x)


def finds_the_module(x):
    module = sys.modules["json"]
    module.stored_by_a_test = getattr(module, "stored_by_a_test", 0) + 1
    return x * 2


def by_a_constant_name(x):
    setattr(json, "stored_by_a_test", getattr(json, "stored_by_a_test", 0) + 1)  # noqa: B010
    return x * 2


def by_a_computed_name(x):
    name = "_by_a_".join(("stored", "test"))
    setattr(json, name, getattr(json, name, 0) + 1)
    return x * 2


def by_the_namespace(x):
    json.__dict__["stored_by_a_test"] = vars(json).get("stored_by_a_test", 0) + 1
    return x * 2


def keeps_a_tensor(x):
    json.stored_by_a_test = getattr(json, "stored_by_a_test", 0 * x) + x
    return x * 2


def fills_a_dict(x):
    if not hasattr(json, "stored_by_a_test"):
        json.stored_by_a_test = {"turn": 0}
    json.stored_by_a_test["turn"] = 1 - json.stored_by_a_test["turn"]
    return x * 2


def fills_a_set(x):
    if not hasattr(torch, "stored_by_a_test"):
        torch.stored_by_a_test = set()
    torch.stored_by_a_test ^= {"a"}
    torch.stored_by_a_test.add("b")
    return x * 2


def fills_a_namespace(x):
    if not hasattr(json, "stored_by_a_test"):
        json.stored_by_a_test = types.SimpleNamespace(turn=0)
    json.stored_by_a_test.turn = 1 - json.stored_by_a_test.turn
    return x * 2


def goes_back_and_forth(x):
    if hasattr(json, "stored_by_a_test"):
        del json.stored_by_a_test
        return x * 2
    json.stored_by_a_test = True
    return x * 3


FUNCTIONS = [
    value
    for value in list(globals().values())
    if isinstance(value, types.FunctionType) and value.__module__ == __name__
]
HOLDERS = (
    *(json, torch, np, builtins),
    *(nn.Linear, collections.Counter, torch.Tensor, F.relu),
)


def _stored():
    found = [vars(holder)[NAME] for holder in HOLDERS if NAME in vars(holder)]
    return [_plain(one) for one in found]


def _plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, types.SimpleNamespace):
        return dict(vars(value))
    return sorted(value) if isinstance(value, set) else repr(value)


@pytest.fixture(autouse=True)
def clean():
    yield
    _clear()


def _clear():
    for holder in HOLDERS:
        if NAME in vars(holder):
            delattr(holder, NAME)


def _run(fn, device, calls=5):
    found = [(fn(torch.arange(3.0, device=device) + i).tolist(), _stored()) for i in range(calls)]
    _clear()
    return found


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_each_call_stores_what_the_function_stores(fn):
    expected = _run(fn, "cpu")
    jitted = calque.jit(fn, verify=False)
    assert _run(jitted, "jax") == expected
    assert len(jitted.history) <= 4


def test_a_function_that_fails_while_it_is_traced_stores_nothing():
    def f(x):
        json.stored_by_a_test = 1
        nn.Linear.stored_by_a_test = 1
        return float(x.sum())

    with pytest.raises(calque.TraceError):
        calque.jit(f)(torch.ones(2, device="jax"))
    assert _stored() == []


@pytest.mark.parametrize("holder", [json, json.JSONEncoder, json.dumps, nn.Module])
def test_what_the_loop_stores_in_a_library_is_compared(monkeypatch, holder):
    monkeypatch.setattr(holder, NAME, 1.0, raising=False)
    readers = {
        json: lambda x: x * json.stored_by_a_test,
        json.JSONEncoder: lambda x: x * json.JSONEncoder.stored_by_a_test,
        json.dumps: lambda x: x * json.dumps.stored_by_a_test,
        nn.Module: lambda x: x * nn.Module.stored_by_a_test,
    }
    f = calque.jit(readers[holder], verify=False)
    x = torch.ones(2, device="jax")
    assert [f(x)[0].item() for _ in range(3)] == [1, 1, 1]
    setattr(holder, NAME, 3.0)
    assert [f(x)[0].item() for _ in range(3)] == [3, 3, 3]
    assert len(f.history) == 2


def test_what_a_module_counts_for_itself_is_not_repeated(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    source = "served = 0\ndef serve(x):\n    global served\n    served += 1\n    return x * 2\n"
    (folder / "package_that_counts.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    package = importlib.import_module("package_that_counts")
    f = calque.jit(lambda x: package.serve(x))
    for _ in range(4):
        assert f(torch.ones(2, device="jax"))[0].item() == 2
    assert f.history == ["first call"]
    del sys.modules["package_that_counts"]


@pytest.mark.parametrize("fn", [counts_in_a_module, counts_in_a_class], ids=lambda f: f.__name__)
def test_a_graph_refuses_what_it_would_not_repeat(fn):
    with pytest.raises(calque.CalqueError, match=f"{NAME} becomes 1, which a graph would not"):
        calque.trace(fn, torch.ones(3))
    assert _stored() == []


_CACHES = """
import collections
import functools

import torch

by_key, listed, table = {}, [], None
ordered, by_default = collections.OrderedDict(), collections.defaultdict(dict)

class Holder:
    kept = {}

    def __init__(self):
        self.tables = []

holder = Holder()

def made(x):
    return torch.arange(2.0, device=x.device) + 1

def in_a_dict(x):
    if "table" not in by_key:
        by_key["table"] = made(x), 1
    return by_key["table"][0]

def in_a_list(x):
    if not listed:
        listed.append(made(x))
    return listed[0]

def in_a_variable(x):
    global table
    if table is None:
        table = made(x)
    return table

def in_an_attribute(x):
    if not hasattr(in_an_attribute, "table"):
        in_an_attribute.table = made(x)
    return in_an_attribute.table

def in_an_ordered_dict(x):
    if "table" not in ordered:
        ordered["table"] = made(x)
    return ordered["table"]

def in_a_nested_dict(x):
    if "table" not in by_default["a"]:
        by_default["a"]["table"] = [made(x)]
    return by_default["a"]["table"][0]

def in_an_object(x):
    if not holder.tables:
        holder.tables.append(made(x))
    return holder.tables[0]

def in_a_class(x):
    if "table" not in Holder.kept:
        Holder.kept["table"] = made(x)
    return Holder.kept["table"]

@functools.lru_cache(maxsize=4)
def on(device):
    return torch.arange(2.0, device=device) + 1

def in_a_cache(x):
    return on(str(x.device))

def of_each_number(x, k):
    if k not in by_key:
        by_key[k] = torch.ones(2, device=x.device) * k
    return by_key[k]

def of_the_last_two(x, k):
    if len(by_key) >= 2:
        by_key.pop(next(iter(by_key)))
    return of_each_number(x, k)

def of_the_last_call(x, k):
    before = by_key.get("last", x)
    by_key["last"] = x * k
    return before + x

settings = {}

def scale(x):
    return x * settings["scale"]

def scaled(x, cached):
    y = x * cached(x)
    return y * 2 if y.sum() > 5 else y
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "package_that_caches.py").write_text(_CACHES)
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("package_that_caches")
    del sys.modules["package_that_caches"]


@pytest.mark.parametrize("cache", re.findall(r"def (in_\w+)", _CACHES))
def test_an_abandoned_trace_leaves_no_tensors_in_the_caches_of_a_package(package, cache):
    cached = getattr(package, cache)
    f = calque.jit(lambda x: package.scaled(x, cached))  # reads a value, so the first trace fails
    for number in (1.0, 1.0, 3.0, 1.0):
        x = torch.full((2,), number, device="jax")
        assert f(x).tolist() == ([6, 12] if number == 3 else [1, 2])
        assert cached(x).tolist() == [1, 2]


KEPT = ["of_each_number", "of_the_last_two", "of_the_last_call"]
"""Functions of the package."""


@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("branches", [True, False])
def test_a_trace_whose_program_serves_no_call_leaves_no_tensors_in_a_package(
    package, name, branches
):
    kept = getattr(package, name)

    def f(x, k):
        return package.scaled(x, lambda x: kept(x, k)) if branches else kept(x, k) + x

    found = {}
    for device in ("cpu", "jax"):
        package.by_key.clear()
        step = calque.jit(f) if device == "jax" else f
        found[device] = []
        for i, k in enumerate((1, 1, 2, 1, 3, 2, 1)):
            result = step(torch.full((2,), i % 3 + 1.0, device=device), k)
            stored = {key: one.tolist() for key, one in package.by_key.items()}
            stored = {} if name == "of_the_last_two" else stored  # hits are not repeated
            found[device].append((result.tolist(), stored))
    assert found["jax"] == found["cpu"]


def test_lowering_leaves_no_tensors_in_a_package(package):
    f = calque.jit(lambda x: x * package.in_a_dict(x))
    x = torch.ones(2, device="jax")
    f.lower(x)
    assert package.by_key == {}
    assert f(x).tolist() == [1, 2]


def test_a_packages_dict_of_plain_values_that_the_program_names_is_compared(package):
    package.settings["scale"] = 2.0
    f = calque.jit(lambda x: package.scale(x) * 0 + x * package.settings["scale"])
    x = torch.ones(2, device="jax")
    assert [f(x)[0].item() for _ in range(4)] == [2] * 4
    package.settings["scale"] = 3.0
    assert [f(x)[0].item() for _ in range(2)] == [3] * 2
    assert len(f.history) == 2
