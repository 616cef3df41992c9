"""What is read into Python never vanishes."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import calque


def scaled(x: Tensor) -> Tensor:
    scale = x.abs().max().item()
    return x / scale if scale > 1 else x


def test_escapes_say_what_was_read_and_where() -> None:
    recording = calque.record(scaled, torch.tensor([1.0, -4.0]))
    (escape,) = recording.escapes
    assert (escape.what, escape.value) == ("item", 4.0)
    assert escape.origin is not None
    assert escape.origin.text == "scale = x.abs().max().item()"


def test_a_guard_names_the_line_and_both_values() -> None:
    graph = calque.record(scaled, torch.tensor([1.0, -4.0])).graph()
    assert graph(torch.tensor([4.0, -2.0])).tolist() == [1.0, -0.5]
    with pytest.raises(calque.TraceError) as raised:
        graph(torch.tensor([1.0, 2.0]))
    message = str(raised.value)
    assert "test_escapes.py:14 in scaled" in message
    assert "item gave 4.0, and now it gives 2.0" in message


def test_strict_refuses_at_the_line() -> None:
    with pytest.raises(calque.TraceError, match=r"test_escapes.py:14 in scaled: item reads"):
        calque.record(scaled, torch.tensor([1.0, -4.0]), strict=True)
    recording = calque.record(torch.relu, torch.ones(2), strict=True)
    assert recording.escapes == []


def test_what_depends_on_shapes_only_is_no_escape() -> None:
    def program(x: Tensor) -> Tensor:
        assert x.dim() == 2
        assert x.is_floating_point()
        assert len(x) == x.shape[0]
        return x.reshape(-1, x.size(1)) * x.numel()

    assert calque.record(program, torch.ones(2, 3), strict=True).escapes == []


def test_arrays_are_compared_to_the_bit_and_nan_is_nan() -> None:
    graph = calque.record(
        lambda x: torch.as_tensor(x.numpy() + 1), torch.tensor([np.nan, 1])
    ).graph()
    assert graph(torch.tensor([np.nan, 1]))[1] == 2
    with pytest.raises(calque.TraceError, match="numpy"):
        graph(torch.tensor([0.0, 1]))


def test_arrays_differ_in_the_signs_of_their_zeros() -> None:
    graph = calque.record(lambda x: x * float(np.signbit(x.numpy())[0]), torch.zeros(2)).graph()
    with pytest.raises(calque.TraceError, match="numpy gave an array .* now it gives another"):
        graph(torch.tensor([-0.0, 0.0]))


@pytest.mark.parametrize(
    ("asked", "other"),
    [
        (len, torch.ones(4, 3)),
        (lambda x: x.nbytes, torch.ones(2, 3, dtype=torch.float64)),
        (lambda x: x.type() == "torch.FloatTensor", torch.ones(2, 3, dtype=torch.float64)),
        (lambda x: torch.result_type(x, 1) == torch.float32, torch.ones(2, 3).double()),
        (lambda x: x.dim_order()[0], torch.ones(3, 2).t()),
    ],
    ids=["len", "nbytes", "type", "result_type", "dim_order"],
)
def test_whatever_the_program_asks_is_checked(asked: Any, other: Tensor) -> None:
    graph = calque.record(lambda x: x * asked(x), torch.ones(2, 3)).graph()
    assert torch.equal(graph(torch.zeros(2, 3)), torch.zeros(2, 3))
    with pytest.raises(calque.TraceError):
        graph(other)


def test_a_gradient_that_was_not_there_is_another_answer() -> None:
    layer = torch.nn.Linear(2, 1)

    def program(x: Tensor) -> Tensor:
        return x if layer.weight.grad is None else x * 2

    graph = calque.record(program, torch.ones(2)).graph()
    assert torch.equal(graph(torch.ones(2)), torch.ones(2))
    layer(torch.ones(2)).sum().backward()
    with pytest.raises(calque.TraceError, match=r"grad gave None, and now it gives a tensor of"):
        graph(torch.ones(2))


def test_python_random_numbers_are_refused_at_the_line() -> None:
    import random

    with pytest.raises(calque.TraceError, match=r"test_escapes.py:.*random"):
        calque.record(lambda x: x * random.random(), torch.ones(2))


def test_problems_are_listed_all_at_once() -> None:
    memory: list[int] = []

    def program(x: Tensor) -> Tensor:
        memory.append(1)
        y = x.numpy()
        y[0] = 3
        return x + 1

    recording = calque.record(program, torch.ones(2))
    assert len(recording.problems) == 2
    with pytest.raises(calque.TraceError) as raised:
        recording.graph()
    assert "memory" in str(raised.value)
    assert "Python writes" in str(raised.value)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x + float(x.numpy()[0]),
        lambda x: x + x.tolist()[0],
        lambda x: x + x[0].item(),
        lambda x: x if "0" in repr(x) else x * 2,
        lambda x: x + len(x[x == 0]),
    ],
    ids=["numpy", "tolist", "item", "repr", "mask"],
)
def test_what_depends_on_values_has_no_operators(program: Any) -> None:
    recording = calque.record(program, torch.zeros(2))
    with pytest.raises(calque.TraceError, match="depends on values of tensors") as raised:
        recording.graph("aten")
    assert "test_escapes.py" in "".join(raised.value.__notes__)


def test_operators_do_not_know_that_two_inputs_are_one() -> None:
    x = torch.ones(2)
    recording = calque.record(lambda a, b: a + b, x, x)
    with pytest.raises(calque.TraceError, match="a and b are one tensor"):
        recording.graph("aten")


def test_an_attribute_of_a_tensor_that_is_given_is_a_problem() -> None:
    x = torch.ones(2)
    x.scale = 3.0  # type: ignore[attr-defined]
    recording = calque.record(lambda a: a["x"] * a["x"].scale, {"x": x})
    assert recording.result.tolist() == [3.0, 3.0]
    with pytest.raises(calque.TraceError, match="argument a has the attribute scale"):
        recording.graph()
