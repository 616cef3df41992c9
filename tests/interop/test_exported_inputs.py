"""What an exported program says of arguments that it was not exported for."""

import pytest
import torch
from torch import nn

import calque


class Product(nn.Module):
    def forward(self, left, right):
        return left @ right


@pytest.fixture(scope="module")
def program():
    rows = torch.export.Dim("rows")
    shapes = {"left": {0: rows}, "right": {1: rows}}
    return calque.export(Product(), (torch.ones(2, 3), torch.ones(3, 2)), dynamic_shapes=shapes)


def test_a_program_is_called_like_its_module(program):
    assert program(torch.ones(4, 3), torch.ones(3, 4)).tolist() == [[3.0] * 4] * 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((torch.ones(2, 3),), r"argument 1 \(right\) is missing: float32\[3, \w+\]"),
        ((torch.ones(2, 4), torch.ones(3, 2)), r"dimension 1 of argument 0 \(left\) is 4"),
        ((torch.ones(2, 3), torch.ones(3, 5)), r"the same size \w+, is 2"),
        ((torch.ones(2, 3), torch.ones(3)), r"argument 1 \(right\) has 1 dimensions"),
        (
            (torch.ones(2, 3), torch.ones(3, 2, dtype=torch.int32)),
            r"argument 1 \(right\) is int32, but the program takes float32",
        ),
        ((torch.ones(2, 3), torch.ones(3, 2), torch.ones(1)), "argument 2 is not an input"),
    ],
)
def test_other_arguments_are_named(program, given, said):
    with pytest.raises(ValueError, match=said) as caught:
        program.call(*given)
    assert "The program was exported for (left: float32[" in str(caught.value)


def test_examples_have_to_be_a_tuple():
    with pytest.raises(TypeError, match=r"calque.export\(model, \(x,\)\)"):
        calque.export(Product(), torch.ones(2))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x, scale=2.0, *, shift=None):
        return self.linear(x[::2]) * scale


def test_sizes_that_do_not_fit_are_named():
    half = torch.export.Dim("half", min=2, max=4)
    program = calque.export(Scaled(), (torch.ones(6, 3),), dynamic_shapes={"x": {0: 2 * half}})
    assert program.call(torch.ones(4, 3)).shape == (2, 2)
    for size, bound in ((0, "at least 1"), (2, ">= 2"), (10, "<= 4"), (7, "at least 1")):
        with pytest.raises(
            ValueError, match=rf"^dimension 0 of argument 0 \(x\) is {size}\b"
        ) as said:
            program.call(torch.ones(size, 3))
        assert bound in str(said.value)


def test_python_values_are_those_of_the_export():
    program = calque.export(Scaled(), (torch.ones(4, 3), 1), {"shift": None})
    x = torch.ones(4, 3)
    assert program.call(x, 1, shift=None).shape == program.call(x, None, shift=None).shape
    for other in (True, 1.0, 2):
        with pytest.raises(ValueError, match=rf"the value 1, but got {other} for"):
            program.call(x, other, shift=None)
    with pytest.raises(ValueError, match=r"argument 1 \(scale\) is part of .*: pass None"):
        program.call(x, torch.ones(()), shift=None)
    with pytest.raises(ValueError, match=r"\(scale\) is missing: .*; argument shift is missing"):
        program.call(x)
    with pytest.raises(ValueError, match="argument other is not an input"):
        program.call(x, 1, shift=None, other=None)


def test_weights_that_do_not_fit_are_named():
    program = calque.export(Scaled(), (torch.ones(4, 3),))
    for wrong, said in (
        (torch.ones(2), r"linear\.weight is float32\[2\], but the program takes float32\[2, 3\]"),
        (torch.ones(2, 3).double(), r"linear\.weight is float64"),
    ):
        with pytest.raises(ValueError, match=said):
            program.with_state({"linear.weight": wrong, "linear.bias": torch.ones(2)})


class Says(nn.Module):
    def forward(self, x):
        return x, "text"


def test_platforms_and_results_that_a_program_has_not():
    for platforms in ("cpu", ["gpu"]):
        with pytest.raises(ValueError, match="platforms must be a list of names from cpu"):
            calque.export(Product(), (torch.ones(1, 1), torch.ones(1, 1)), platforms=platforms)
    with pytest.raises(calque.TraceError, match="returns 'text': return only tensors and numbers"):
        calque.export(Says(), (torch.ones(1),))
