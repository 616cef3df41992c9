"""Ordinary code around models: configurations, meters, loggers, callbacks, buffers, rollouts."""

import argparse
import contextlib
import dataclasses
import json
import types
from collections.abc import Iterator
from typing import Any

import torch

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("research", "jit rows trace")
Seen = Iterator[Any]


class Node:
    """A configuration of nested nodes with attribute access, as OmegaConf's."""

    def __init__(self, content):
        object.__setattr__(self, "_content", {})
        for name, value in content.items():
            self._content[name] = Node(value) if isinstance(value, dict) else value

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._content.get(name)

    def __setattr__(self, name, value):
        self._content[name] = value

    def __getitem__(self, name):
        return self._content[name]

    def __contains__(self, name):
        return name in self._content

    def get(self, path, default=None):
        node: Any = self
        for part in path.split("."):
            if part not in node:
                return default
            node = node[part]
        return node


@program(states=3, modes="jit rows")
def configuration_of_nested_nodes(case: Case) -> Seen:
    cfg = Node({"model": {"gain": 2.0, "act": "tanh"}, "debug": False})

    def f(x):
        x = getattr(torch, cfg.model.act)(x) * cfg.model.gain
        return -x if cfg.debug else x

    f = case.fn(f)
    yield f(case.x)
    cfg.model.gain = 3.0
    yield f(case.x)
    cfg.debug = True
    yield f(case.x)
    cfg.model.gain, cfg.debug = 2.0, False
    yield f(case.x)


@program(states=3, modes="jit rows")
def configuration_by_dotted_paths(case: Case) -> Seen:
    cfg = Node({"model": {"gain": 2.0}})
    f = case.fn(lambda x: x * cfg.get("model.gain") + cfg.get("model.shift", 0.0))
    yield f(case.x)
    cfg.model.shift = 1.0
    yield f(case.x)
    cfg.model.gain = 5.0
    yield f(case.x)


@program(states=4, modes="jit rows")
def arguments_of_the_command_line(case: Case) -> Seen:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gain", type=float, default=2.0)
    parser.add_argument("--negate", action="store_true")
    s = types.SimpleNamespace(args=parser.parse_args([]))

    def f(x):
        x = x * s.args.gain
        return -x if s.args.negate else x

    f = case.fn(f)
    for line in ([], ["--gain", "3"], ["--negate"], []):
        s.args = parser.parse_args(line)
        yield f(case.x)


@dataclasses.dataclass
class TrainConfig:
    gain: float = 2.0
    stages: tuple[str, ...] = ("tanh",)
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


@program(states=3, modes="jit rows")
def configuration_read_as_a_dict(case: Case) -> Seen:
    cfg = TrainConfig()

    def f(x):
        own = dataclasses.asdict(cfg)
        for stage in own["stages"]:
            x = getattr(torch, stage)(x)
        return x * own["gain"] + len(own["extra"])

    f = case.fn(f)
    yield f(case.x)
    cfg.stages = ("tanh", "neg")
    yield f(case.x)
    cfg.extra["note"] = "a"
    yield f(case.x)


@program(states=2, modes="jit rows")
def configuration_from_json(case: Case) -> Seen:
    s = types.SimpleNamespace(text='{"gain": 2.0}')
    f = case.fn(lambda x: x * json.loads(s.text)["gain"])
    for s.text in ('{"gain": 2.0}', '{"gain": 3.0}', '{"gain": 3.0}', '{"gain": 2.0}'):
        yield f(case.x)


@program(states=2, modes="jit rows")
def override_of_a_configuration_for_a_while(case: Case) -> Seen:
    cfg = TrainConfig()

    @contextlib.contextmanager
    def override(**values):
        before = {name: getattr(cfg, name) for name in values}
        for name, value in values.items():
            setattr(cfg, name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(cfg, name, value)

    f = case.fn(lambda x: x * cfg.gain)
    yield f(case.x)
    with override(gain=9.0):
        yield f(case.x)
        yield f(case.x)
    yield f(case.x)


REGISTRY: dict[str, Any] = {}


def register(name):
    def add(fn):
        REGISTRY[name] = fn
        return fn

    return add


@program(states=3, modes="jit rows")
def registry_of_functions(case: Case) -> Seen:
    REGISTRY.clear()
    register("act")(torch.tanh)
    f = case.fn(lambda x: REGISTRY["act"](x) + len(REGISTRY))
    yield f(case.x)
    register("act")(torch.neg)
    yield f(case.x)
    register("other")(torch.sin)
    yield f(case.x)
