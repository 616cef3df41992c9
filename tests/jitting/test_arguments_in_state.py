"""Arguments that are also in variables that the function rebinds, in some calls."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import calque


def of(device: str) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([float(ord(name)), 2.0]).to(device) for name in "abc"}


def keeps_the_last(s: Any, x: torch.Tensor) -> Any:
    change = x * 1 if s.held is None else x - s.held
    s.held = x
    return change


def keeps_two(s: Any, x: torch.Tensor) -> Any:
    last, _ = s.held
    s.held = (x, last)
    return x * last, last


def adds(s: Any, x: torch.Tensor) -> Any:
    s.held = s.held + x
    return s.held * x


def adds_in_a_list(s: Any, x: torch.Tensor) -> Any:
    first, second = s.held
    s.held = [first + x, second * 0.5]
    return first * x


PROGRAMS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (keeps_the_last, lambda t: None),
    (keeps_two, lambda t: (t["a"], t["b"])),
    (adds, lambda t: t["a"]),
    (adds_in_a_list, lambda t: [t["a"], t["b"]]),
]


def values(result: Any) -> Any:
    return [values(one) for one in result] if isinstance(result, tuple | list) else result.tolist()


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("order", ["aabbccabcabc", "abcabcabc", "aaaabb"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one[0].__name__)
def test_such_an_argument_is_no_other_tensor(program: Any, order: str, verify: bool) -> None:
    seen = []
    run, start = program
    for device in ("cpu", "jax"):
        tensors = of(device)
        state = SimpleNamespace(held=start(tensors))

        def step(x: torch.Tensor, state: Any = state) -> Any:
            return run(state, x)

        fn = calque.jit(step, verify=verify) if device == "jax" else step
        seen.append([(values(fn(tensors[name])), values(state.held)) for name in order])
        if device == "jax":
            # Of three tensors, the same ones may be equal in five ways.
            assert len(fn.history) <= 6, fn.history  # type: ignore[union-attr]
    assert seen[0] == seen[1]
