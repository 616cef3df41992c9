"""A line whose tensors grow is warned of, once; layers of different sizes are not."""

import itertools
import warnings

import pytest
import torch
from torch import nn

import calque
from calque.device.kernels.growing_shapes import _lines

pytestmark = pytest.mark.filterwarnings("always:.* was compiled for 5 lengths")


@pytest.fixture(autouse=True)
def forget() -> None:
    _lines.lengths.clear()
    _lines.warned.clear()


def warned(function) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function()
    return [one for one in found if one.category is calque.ShapeWarning]


def test_a_growing_length_is_said_at_the_users_line():
    weight = torch.ones(7, 7, device="jax")

    def generate():
        for length in range(20, 32):
            x = torch.ones(1, length, 7).to("jax")
            torch.nn.functional.linear(x, weight)  # this line

    (one,) = warned(generate)
    assert one.filename == __file__
    assert one.lineno == generate.__code__.co_firstlineno + 3
    assert "(20, 21, 22, 23, 24)" in str(one.message)
    assert "Pad to one length" in str(one.message)


def test_layers_of_different_sizes_are_no_growth():
    sizes = [3, 5, 9, 11, 13, 17, 19, 23]
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    model = nn.Sequential(*layers).to("jax")
    assert warned(lambda: model(torch.ones(2, 3, device="jax"))) == []


def test_parameters_of_different_lengths_are_no_growth():
    vectors = [torch.ones(n).to("jax").requires_grad_() for n in (51, 52, 53, 54, 55, 56)]
    optimizer = torch.optim.Adam(vectors, foreach=False)
    for vector in vectors:
        vector.grad = torch.ones(len(vector)).to("jax")

    def step():
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    assert warned(step) == []


def test_depthwise_kernels_of_an_optimizer_are_no_growth():
    widths = (2, 4, 5, 6, 7, 8)
    kernels = [nn.Parameter(torch.ones(n, 1, 3, 3).to("jax")) for n in widths]
    optimizer = torch.optim.SGD(kernels, lr=0.1, momentum=0.9, foreach=False)

    def train():
        for one in kernels:
            nn.init.normal_(one)
            one.grad = torch.empty_like(one)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    assert warned(train) == []


def test_a_growing_vector_is_said():
    def grow():
        for length in range(60, 70):
            torch.ones(length).to("jax") * 3.5

    assert len(warned(grow)) == 1


def test_lengths_that_come_again_are_not_counted():
    def go():
        for length in (41, 42, 43, 44) * 3:
            torch.ones(length, device="jax") * 2.5

    assert warned(go) == []
