"""What leaves a jitted function is what leaves it eagerly: gradients, and results as they are."""

import warnings
from typing import Any

import pytest
import torch

import calque
from tests.laws import gradient_programs, result_programs

PROGRAMS = gradient_programs.PROGRAMS | result_programs.PROGRAMS

RETRACED = {
    "losses_in_a_list": 3,
    "a_computed_argument_written_in_place": 4,
    "a_second_derivative_with_a_counter": 3,
    "what_autograd_says_of_results": 3,
    "no_grad_and_inference_mode": 3,
    "types_inside": 3,
}
"""How often the function of a program may be traced, where that is more than twice."""


def same(want: Any, got: Any, path: str = "result") -> None:
    """Check that what a program gives on the device is what it gives on the CPU."""
    if isinstance(want, torch.Tensor):
        assert isinstance(got, torch.Tensor), f"{path} is {got!r}"
        torch.testing.assert_close(
            got.detach().cpu(), want.detach(), rtol=1e-4, atol=1e-5, equal_nan=True, msg=None
        )
    elif isinstance(want, list | tuple):
        assert len(want) == len(got), path
        for index, (one, other) in enumerate(zip(want, got, strict=True)):
            same(one, other, f"{path}[{index}]")
    else:
        assert type(want) is type(got) and want == got, f"{path} is {got!r}, not {want!r}"


@pytest.mark.sampled(22)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_the_same_jitted_as_on_the_cpu(name):
    made = []

    def jit(fn):
        made.append(calque.jit(fn))
        return made[-1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch's, about create_graph in backward()
        want = PROGRAMS[name](lambda *x: torch.tensor([float(v) for v in x]), lambda fn: fn)
        got = PROGRAMS[name](lambda *x: torch.tensor([float(v) for v in x], device="jax"), jit)
    same(want, got)
    for run in made:
        assert len(run.history) <= RETRACED.get(name, 2), run.history
