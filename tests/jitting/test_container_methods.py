"""Containers of classes with methods of their own, which are not called to find what they hold."""

import builtins
import json
from collections import OrderedDict, deque
from typing import Any

import pytest
import torch
from torch import nn

import calque


class _Refusing:
    def _refuse(self, *_: Any) -> Any:
        raise NotImplementedError

    __len__ = __iter__ = __contains__ = __getitem__ = __bool__ = _refuse


class _Tuple(_Refusing, tuple): ...


class _List(_Refusing, list): ...


class _Deque(_Refusing, deque): ...


class _Set(_Refusing, set): ...


class _Dict(_Refusing, dict): ...


for _name in ("items", "keys", "values", "get"):
    setattr(_Dict, _name, _Refusing._refuse)


class _Holder(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held
        self.rate = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.held is not None
        return x * self.rate


def _kinds() -> list[Any]:
    return [_Tuple((1, 2)), _List((1, 2)), _Deque((1, 2)), _Set((1, 2)), _Dict(a=1)]


@pytest.mark.parametrize("held", _kinds(), ids=lambda held: type(held).__name__)
def test_methods_of_a_container_are_not_called(held: Any) -> None:
    x = torch.ones(2)
    module = _Holder(held).to("jax")
    jitted = calque.jit(module)
    for rate in (2.0, 2.0, 3.0):
        module.rate = rate
        assert jitted(x.to("jax")).tolist() == [rate, rate]
    assert jitted.compilations == 2
    cpu = _Holder(held)
    assert calque.trace(cpu, x)(x).tolist() == [2.0, 2.0]
    assert calque.record(cpu, x).graph()(x).tolist() == [2.0, 2.0]
    apply, params = calque.functional(cpu)
    assert apply(params, calque.to_jax(x)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("held", _kinds()[:3], ids=lambda held: type(held).__name__)
def test_methods_of_an_argument_are_not_called(held: Any) -> None:
    jitted = calque.jit(lambda x, _: x + 1)
    for _ in range(2):
        assert jitted(torch.ones(2, device="jax"), held).tolist() == [2.0, 2.0]
    assert jitted.compilations == 1


@pytest.mark.parametrize("make", [_List, _Deque, _Tuple], ids=lambda kind: kind.__name__)
def test_methods_of_a_new_container_in_the_state_are_not_called(make: Any) -> None:
    class State:
        held: Any = None

    @calque.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        State.held = (make([x * 2]), 1)
        return x + 1

    x = torch.ones(2, device="jax")
    for _ in range(3):
        assert step(x).tolist() == [2.0, 2.0]
        (first,) = make.__mro__[2].__iter__(State.held[0])
        assert first.tolist() == [2.0, 2.0]


class _Lazy(OrderedDict):
    """As transformers' dicts of classes, which import all that they name when asked."""

    asked = 0

    def __len__(self) -> int:
        self.asked += 1
        return 2


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_dict_that_is_filled_when_asked_is_not_asked(is_asked: bool) -> None:
    class Holder:
        held = _Lazy()

        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x * (1 if self.held is None else len(self.held) if is_asked else 3)

    holder = Holder()
    run, ones = calque.jit(holder.run), torch.ones(2, device="jax")
    for i in range(1 if is_asked else 4):
        assert run(ones).tolist() == ([2, 2] if is_asked else [3, 3]), i
    assert len(run.history) == 1, run.history
    assert holder.held.asked == int(is_asked)


def test_variables_of_a_package_in_a_dict_are_left_to_it() -> None:
    """As in `__builtins__`, in a dict of the variables of a module."""
    state = {"n": 1.0, "space": vars(builtins), "json": vars(json)}

    @calque.jit
    def run(x: torch.Tensor) -> torch.Tensor:
        assert len(state["space"]) > 2 and state["json"]
        builtins.__annotations__ = {}  # type: ignore[attr-defined]
        state["n"] += 1.0
        return x * state["n"]

    try:
        for i in range(4):
            assert run(torch.ones(2, device="jax")).tolist() == [i + 2, i + 2]
    finally:
        vars(builtins).pop("__annotations__", None)
    assert len(run.history) <= 2, run.history
