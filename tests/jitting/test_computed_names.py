"""Attributes whose names the traced code computes: seen one by one, and no others are compared."""

import builtins
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import calque

X = (1.0, 2.0)


def x():
    return torch.tensor(X, device="jax")


class Callback:
    unrelated = 0


class Trainer:
    def __init__(self):
        self.steps, self.mode, self.gain, self.callbacks = 0, "up", 2.0, []

    def do_up(self, x):
        return x * self.gain

    def do_down(self, x):
        return x / self.gain

    def call(self, hook, x):
        for callback in self.callbacks:
            x = getattr(callback, hook, lambda x: x)(x)
        return x

    def step(self, x):
        self.steps += 1
        x = self.call("on_" + "start", x)
        return getattr(self, f"do_{self.mode}")(x)


def test_what_counts_beside_names_that_are_computed_brings_no_trace():
    trainer = Trainer()
    trainer.callbacks.append(Callback())
    step = calque.jit(trainer.step)
    for _ in range(5):
        trainer.callbacks[0].unrelated += 1
        assert step(x())[0].item() == 2
    assert trainer.steps == 5
    assert step.compilations == len(step.history) == 1
    trainer.mode = "down"
    assert step(x())[0].item() == 0.5
    trainer.gain = 4.0
    assert step(x())[0].item() == 0.25
    trainer.callbacks[0].on_start = lambda x: x * 8
    assert step(x())[0].item() == 2
    trainer.do_down = lambda x: -x
    assert step(x())[0].item() == -8
    assert trainer.steps == 9
    assert "getattr" not in globals()


@pytest.mark.parametrize("by", ["getattr", "vars", "map", "eval", "thread", "subclass of str"])
def test_a_count_that_is_read_by_a_computed_name_is_compared(by):
    s = types.SimpleNamespace(n=0, name="n")

    class Name(str):
        __slots__ = ()

    def in_a_thread():
        found = []
        thread = threading.Thread(target=lambda: found.append(getattr(s, s.name)))
        thread.start()
        thread.join()
        return found[0]

    reads = {
        "getattr": lambda: getattr(s, s.name),
        "vars": lambda: vars(s)[s.name],
        "map": lambda: next(map(getattr, [s], [s.name])),
        "eval": lambda: eval("getattr(s, s.name)", {"s": s}),
        "thread": in_a_thread,
        "subclass of str": lambda: getattr(s, Name(s.name)),
    }

    @calque.jit
    def f(x):
        s.n += 1
        return x * reads[by]()

    assert [f(x())[0].item() for _ in range(4)] == [1, 2, 3, 4]


def test_attributes_are_set_and_deleted_by_computed_names():
    class Holder:
        def __init__(self):
            self.prefix, self.n = "last", 0

    s = Holder()

    @calque.jit
    def f(x):
        s.n += 1
        if hasattr(s, s.prefix + "_x"):
            delattr(s, s.prefix + "_x")
            return -x
        setattr(s, s.prefix + "_x", 2.0)
        return x

    assert [f(x())[0].item() for _ in range(5)] == [1, -1, 1, -1, 1]
    assert vars(s) == {"prefix": "last", "n": 5, "last_x": 2.0}
    assert len(f.history) <= 3


def test_no_code_sees_intercepted_functions():
    s, seen = types.SimpleNamespace(n=1.0, name="n"), []

    def own():
        return getattr

    @calque.jit
    def f(x):
        y = x * getattr(s, s.name)
        seen.append(own() is builtins.getattr and "getattr" not in globals())
        return y

    assert [f(x())[0].item() for _ in range(2)] == [1, 1]
    assert seen == [True, True]
    s.name = "missing"
    with pytest.raises(AttributeError, match="missing"):
        f(x())
    assert "getattr" not in globals()


def test_a_hook_on_a_view_that_is_hung_by_a_computed_name_runs() -> None:
    def hang(on: Any, hook: Callable[..., Any]) -> None:
        getattr(on, "_".join(("register", "hook")))(hook)

    def on_node(x: torch.Tensor) -> torch.Tensor:
        y = x.view(3, 1)
        hang(y.grad_fn, lambda given, _: (given[0] * 10,))
        return y

    def on_tensor(x: torch.Tensor) -> torch.Tensor:
        y = x.view(3, 1)
        hang(y, lambda gradient: gradient * 10)
        return y

    for function in (on_node, on_tensor):
        step = calque.jit(function)
        for _ in range(2):
            x = torch.ones(3, device="jax", requires_grad=True)
            step(x).sum().backward()
            assert x.grad is not None
            assert x.grad.tolist() == [10, 10, 10]


class Point:
    __match_args__ = ("left", "right")

    def __init__(self, left, right):
        self.left, self.right = left, right


class Inner(Point):
    pass


def test_patterns_read_attributes_by_position():
    point = Inner(1, x())

    @calque.jit
    def step(x):
        match point:
            case Point(1, scale):
                return x * scale
            case Point(_, scale):
                return x - scale

    assert step(x()).tolist() == [1, 4]
    point.right = x() + 1
    assert step(x()).tolist() == [2, 6]
    point.left = 2
    assert step(x()).tolist() == [-1, -1]
    point.left = 1
    step(x())
    assert len(step.history) <= 3


class Filled:
    def __init__(self, **values):
        self.__dict__.update(values)


def test_what_was_set_before_all_attributes_counted_is_set_by_each_call():
    holder = Filled(b=2)

    @calque.jit
    def call(x):
        holder.a = 1
        del holder.b
        return Filled(made=x * 2).made  # its code names `__dict__`

    for _ in range(3):
        holder.b = 2
        call(x())
        assert vars(holder) == {"a": 1}
        holder.a = 3


def test_special_variables_that_code_names_after_it_lists_all_variables_were_there_before() -> None:
    class Reader:
        def scale(self, x: torch.Tensor) -> torch.Tensor:
            return x * (len(torch.__file__) > 0)

    reader = Reader()

    def f(x: torch.Tensor) -> torch.Tensor:
        return reader.scale(x) * ("pytest" in globals())

    step = calque.jit(f)
    assert [step(x())[0].item() for _ in range(3)] == [1, 1, 1]
    assert step.history == ["first call"]
    assert calque.record(f, torch.ones(3)).problems == []
