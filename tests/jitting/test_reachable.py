"""The search for what a function reaches."""

import copy
import sys
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
import torch

import calque
from calque.jitting.reachable import Reachable


class _Settings:
    """One of very many objects of a program."""

    def __init__(self) -> None:
        self.name, self.scale = "layer", 2.0


def _reading(names: int) -> CodeType:
    text = "".join(f"    settings.attribute_{i}\n" for i in range(names))
    made = compile(f"def read(settings):\n{text}", "program.py", "exec")
    return next(c for c in made.co_consts if isinstance(c, CodeType))


def _calls(objects: int, names: int) -> int:
    read = FunctionType(_reading(names), {})
    held = [_Settings() for _ in range(objects)]
    found = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal found
        found += event == "c_call"

    sys.setprofile(count)
    try:
        Reachable(read, held)
    finally:
        sys.setprofile(None)
    return found


def test_the_search_does_not_look_up_every_name_in_every_object() -> None:
    few, many = _calls(200, 10), _calls(200, 400)
    assert many < 2 * few + 5000


def test_a_word_in_code_is_no_variable_of_that_name() -> None:
    """`state["hidden"]` does not read the variable `hidden`."""
    text = """
def step(x):
    hidden = x * 2 if state["hidden"] is None else state["hidden"] + x
    state.get("named"), x.grad
    return hidden

def looking(x):
    return globals()["named"], vars()
"""
    hidden, named, grad = torch.ones(2), torch.ones(2), torch.ones(2)
    space: dict[str, Any] = {"state": {"hidden": None}}
    space |= {"hidden": hidden, "named": named, "grad": grad}
    exec(compile(text, "program.py", "exec"), space)
    assert not Reachable(space["step"]).tensors
    assert id(named) in Reachable(space["looking"]).tensors


def test_a_hidden_state_that_a_script_keeps_in_a_variable_of_the_same_name() -> None:
    text = """
@calque.jit
def step(x):
    found = cell(x, state["hidden"])
    return found.sum(), found

found = []
for _ in range(6):
    loss, hidden = step(torch.ones(1, 3, device="jax"))
    state["hidden"] = hidden.detach()
    found.append(loss.item())
"""
    cell = torch.nn.GRUCell(3, 4)
    space: dict[str, Any] = {"torch": torch, "calque": calque, "state": {"hidden": None}}
    space["cell"] = copy.deepcopy(cell).to("jax")
    exec(compile(text, "program.py", "exec"), space)
    expected, hidden = [], None
    for _ in range(6):
        hidden = cell(torch.ones(1, 3), hidden).detach()
        expected.append(hidden.sum().item())
    assert space["found"] == pytest.approx(expected, rel=1e-5)
    assert len(space["step"].history) == 3
