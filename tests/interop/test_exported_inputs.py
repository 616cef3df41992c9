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
            r"argument 1 \(right\) is int32, and the program takes float32",
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
