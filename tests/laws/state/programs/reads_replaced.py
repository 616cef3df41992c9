"""L1: objects that others take the place of: methods, closures, what tuples hold, own dicts."""

import builtins
import copy
import datetime
import fractions
import pathlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("reads", "jit rows")
Seen = Iterator[Any]


class _Gain:
    factor = 1.0

    def __init__(self, gain: float) -> None:
        self.gain = gain

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain

    @classmethod
    def scaled(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.factor


class _Louder(_Gain):
    factor = 7.0


def _gained(gain: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * gain


@program(states=2)
def method_of_another_object(case: Case) -> Seen:
    quiet, loud = SimpleNamespace(apply=_Gain(2.0).__call__), _Gain(5.0)
    f = case.fn(lambda x: quiet.apply(x))
    yield f(case.x)
    yield f(case.x)
    quiet.apply = loud.__call__
    yield f(case.x)
    yield f(case.x)


@program(states=2)
def method_of_another_class(case: Case) -> Seen:
    chosen = {"apply": _Gain.scaled}
    f = case.fn(lambda x: chosen["apply"](x))
    yield f(case.x)
    yield f(case.x)
    chosen["apply"] = _Louder.scaled
    yield f(case.x)
    yield f(case.x)


@program(states=2)
def closure_of_another_call(case: Case) -> Seen:
    chosen = [_gained(2.0)]
    f = case.fn(lambda x: chosen[0](x))
    yield f(case.x)
    yield f(case.x)
    chosen[0] = _gained(5.0)
    yield f(case.x)
    yield f(case.x)


@program(states=1)
def closure_made_anew_with_an_equal_value(case: Case) -> Seen:
    chosen = [_gained(2.0)]
    f = case.fn(lambda x: chosen[0](x))
    for _ in range(4):
        chosen[0] = _gained(2.0)
        yield f(case.x)


@program(states=2)
def closure_made_anew_then_its_variable_changed(case: Case) -> Seen:
    chosen = [_gained(2.0)]
    f = case.fn(lambda x: chosen[0](x))
    yield f(case.x)
    yield f(case.x)
    chosen[0] = _gained(2.0)
    yield f(case.x)
    chosen[0].__closure__[0].cell_contents = 5.0  # pyright: ignore[reportOptionalSubscript]
    yield f(case.x)


@program(states=2)
def function_of_the_same_text_in_another_namespace(case: Case) -> Seen:
    spaces: list[dict[str, Any]] = [{"GAIN": 2.0}, {"GAIN": 5.0}]
    text = compile("def apply(x):\n    return x * GAIN\n", __file__, "exec")
    for space in spaces:
        exec(text, space)
    chosen = [spaces[0]["apply"]]
    f = case.fn(lambda x: chosen[0](x))
    yield f(case.x)
    yield f(case.x)
    chosen[0] = spaces[1]["apply"]
    yield f(case.x)


@program(states=3)
def object_in_a_tuple_that_is_held_elsewhere(case: Case) -> Seen:
    shared = _Gain(2.0)
    config: dict[str, Any] = {"pair": (shared,), "own": shared}
    del shared
    f = case.fn(lambda x: config["pair"][0](x) + 100 * config["own"](x))
    yield f(case.x)
    yield f(case.x)
    config["pair"] = (_Gain(2.0),)
    yield f(case.x)
    config["own"].gain = 9.0
    yield f(case.x)


@program(states=2)
def one_object_in_the_place_of_two(case: Case) -> Seen:
    config = {"both": [_Gain(1.0), _Gain(1.0)]}

    def louder_for_one(x):
        one, other = config["both"]
        one.gain = 5.0
        y = other(x)
        one.gain = 1.0
        return y

    f = case.fn(louder_for_one)
    yield f(case.x)
    yield f(case.x)
    config["both"] = [_Gain(1.0)] * 2
    yield f(case.x)
    yield f(case.x)


@program(states=3)
def own_dict_of_an_object_replaced(case: Case) -> Seen:
    config = _Gain(2.0)
    f = case.fn(lambda x: config(x))
    yield f(case.x)
    yield f(case.x)
    config.__dict__ = {"gain": 5.0}
    yield f(case.x)
    yield f(case.x)
    config.gain = 7.0
    yield f(case.x)


@program(states=2)
def own_dict_of_a_module_replaced(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x))
    yield f(case.x)
    yield f(case.x)
    m.__dict__ = copy.deepcopy(m.__dict__)
    m.weight.data.mul_(2)
    yield f(case.x)
    yield f(case.x)


@program
def own_dict_replaced_by_the_function(case: Case) -> Seen:
    meter = _Gain(2.0)

    def measured(x):
        meter.__dict__ = {"gain": 3.0, "total": x.sum()}
        return meter(x)

    f = case.fn(measured)
    for i in range(4):
        yield f(case.x + i), meter


@program(states=2)
def special_method_of_a_class_of_pytorch(case: Case) -> Seen:
    m = nn.Sequential(nn.Softsign(), nn.Hardtanh())
    f = case.fn(lambda x: m(x))
    yield f(case.x)
    yield f(case.x)
    nn.Softsign.__call__ = lambda self, x: x * 3  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield f(case.x)
        yield f(case.x)
    finally:
        del nn.Softsign.__call__


@program(states=3)
def flag_among_the_builtins(case: Case) -> Seen:
    held: Any = builtins
    held._louder_ = _Gain(2.0)
    f = case.fn(lambda x: _louder_(x))  # pyright: ignore[reportUndefinedVariable]
    try:
        yield f(case.x)
        yield f(case.x)
        held._louder_ = _Gain(3.0)
        yield f(case.x)
        yield f(case.x)
        held._louder_.gain = 5.0
        yield f(case.x)
    finally:
        del held._louder_


@program(states=4)
def gradient_of_two_parameters_then_of_one(case: Case) -> Seen:
    a, b = (nn.Parameter(case.x[0] * 0 + i) for i in (1.0, 2.0))

    def grown(x):
        ((a * x[0]).sum() + (b * x[1]).sum()).backward()
        return torch.add(a.grad, b.grad)  # pyright: ignore[reportArgumentType, reportCallIssue]

    f = case.fn(grown)
    yield f(case.x)
    yield f(case.x)
    a.grad = b.grad
    yield f(case.x), f(case.x), a.grad, b.grad
    a.grad = b.grad * 1  # pyright: ignore[reportOptionalOperand]
    yield f(case.x), f(case.x), a.grad, b.grad


class _Name(str):
    unit = "m"


class _Ratio(fractions.Fraction):
    pass


class _Where(type(pathlib.Path())):
    pass


class _Span(datetime.timedelta):
    pass


class _Failure(Exception):
    pass


class _Scaled(tuple):
    scale = 1.0


class _Marked(set):
    scale = 1.0


def _replaced(case: Case, values: list[Any], read: Callable[[Any], float]) -> Seen:
    """Two calls for each value, in the place of the one before."""
    config = SimpleNamespace(value=values[0])
    f = case.fn(lambda x: x * read(config.value))
    for value in values:
        config.value = value
        yield f(case.x)
        yield f(case.x)


@program(states=2)
def string_of_a_class_of_ones_own(case: Case) -> Seen:
    yield from _replaced(case, [_Name("a"), _Name("abc")], lambda v: len(v + v.unit))


@program(states=2)
def fraction_of_a_class_of_ones_own(case: Case) -> Seen:
    yield from _replaced(case, [_Ratio(1, 2), _Ratio(1, 3)], float)


@program(states=2)
def path_of_a_class_of_ones_own(case: Case) -> Seen:
    yield from _replaced(case, [_Where("a"), _Where("abc")], lambda v: len(v.name))


@program(states=2)
def time_of_a_class_of_ones_own(case: Case) -> Seen:
    spans = [_Span(seconds=2), _Span(seconds=3)]
    yield from _replaced(case, spans, lambda v: v.total_seconds())


@program(states=3)
def arguments_of_an_exception(case: Case) -> Seen:
    kept = _Failure(2.0)
    f = case.fn(lambda x: x * kept.args[0])
    yield f(case.x)
    yield f(case.x)
    kept.args = (3.0,)
    yield f(case.x)
    yield f(case.x)
    kept = _Failure(5.0)
    yield f(case.x)


@program(states=3)
def attribute_of_a_tuple_of_ones_own(case: Case) -> Seen:
    pair = _Scaled((1.0, 2.0))
    f = case.fn(lambda x: x * pair[1] * pair.scale)
    yield f(case.x)
    yield f(case.x)
    pair.scale = 3.0
    yield f(case.x)
    yield f(case.x)
    pair = _Scaled((1.0, 2.0))
    pair.scale = 5.0
    yield f(case.x)


@program(states=2)
def attribute_of_a_set_of_ones_own(case: Case) -> Seen:
    chosen = _Marked([2.0])
    f = case.fn(lambda x: x * sum(chosen) * chosen.scale)
    yield f(case.x)
    yield f(case.x)
    chosen.scale = 3.0
    yield f(case.x)
    yield f(case.x)
