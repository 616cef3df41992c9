"""What is read into Python never vanishes."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor

import calque
from calque.graph import JaxInterpreter


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
    assert "test_escapes.py:16 in scaled" in message
    assert "item gave 4.0 when this was recorded, but gives 2.0 now" in message


def test_strict_refuses_at_the_line() -> None:
    with pytest.raises(calque.TraceError, match=r"test_escapes.py:16 in scaled: item reads"):
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
    with pytest.raises(calque.TraceError, match="numpy gave an array .* gives another"):
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
    with pytest.raises(calque.TraceError, match=r"grad gave None .* gives a tensor of"):
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


def decoded(x: Tensor) -> Tensor:
    """Calls an operator that writes in place below autograd."""
    state = torch.ones(1, 2)
    return torch.gru_cell(x[None], state, torch.ones(6, 2), torch.ones(6, 2))[0]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x + float(x.numpy()[0]),
        lambda x: x + x.tolist()[0],
        lambda x: x + x[0].item(),
        lambda x: x if "0" in repr(x) else x * 2,
        lambda x: x * 2 if torch.allclose(x, x * 1) and x.sum() == 0 else x,
        lambda x: torch.cond(x.sum() > 1, lambda y: y + 1, lambda y: y * 2, (x,)),
        lambda x: x.add_(1) * int(x.sum()),
        lambda x: decoded(x) * 2 if x.sum() > 1 else decoded(x),
    ],
    ids=["numpy", "tolist", "item", "repr", "allclose", "cond", "between writes", "gru"],
)
def test_a_graph_of_operators_has_the_guards_too(program: Any) -> None:
    graph = calque.record(program, torch.zeros(2)).graph("aten")
    x, y = torch.zeros(2), torch.zeros(2)
    torch.testing.assert_close(graph(x), program(y))
    torch.testing.assert_close(x, y)
    other = torch.full((2,), 3.0)
    with pytest.raises(calque.TraceError, match=r"test_escapes\.py:\d+ .*when this was recorded"):
        graph(other)
    assert other.tolist() == [3.0, 3.0]  # nothing is written before the guard


def test_a_guard_of_operators_is_refused_where_arrays_have_no_values_yet() -> None:
    graph = calque.record(lambda x: x * x.sum().item(), torch.ones(2)).graph("aten")
    with pytest.raises(calque.TraceError, match="test_escapes.py"):
        jax.jit(JaxInterpreter(graph))(jax.numpy.ones(2))


def test_a_shape_that_depends_on_values_has_no_operators() -> None:
    recording = calque.record(lambda x: x + len(x[x == 0]), torch.zeros(2))
    with pytest.raises(calque.TraceError, match="depends on values of tensors") as raised:
        recording.graph("aten")
    assert "test_escapes.py" in "".join(raised.value.__notes__)


def test_operators_do_not_know_that_two_inputs_are_one() -> None:
    x = torch.ones(2)
    recording = calque.record(lambda a, b: a + b, x, x)
    with pytest.raises(calque.TraceError, match="a and b are the same tensor"):
        recording.graph("aten")


def test_an_attribute_of_a_tensor_that_is_given_is_a_problem() -> None:
    x = torch.ones(2)
    x.scale = 3.0  # type: ignore[attr-defined]
    recording = calque.record(lambda a: a["x"] * a["x"].scale, {"x": x})
    assert recording.result.tolist() == [3.0, 3.0]
    with pytest.raises(calque.TraceError, match="argument a has the attribute scale"):
        recording.graph()


@pytest.mark.parametrize(
    ("program", "other"),
    [
        (lambda x: x * 2 if x.is_contiguous() else x * 3, torch.ones(4, 2).t()),
        (lambda x: x * x.stride(0), torch.ones(4, 2).t()),
        (lambda x: x * 2 if x.requires_grad else x * 3, torch.ones(2, 4, requires_grad=True)),
    ],
)
@pytest.mark.parametrize("level", ["function", "aten"])
def test_what_was_asked_of_an_input_is_checked_at_every_level(
    level: Any, program: Any, other: torch.Tensor
) -> None:
    graph = calque.record(program, torch.ones(2, 4)).graph(level)
    assert torch.equal(graph(torch.ones(2, 4)), program(torch.ones(2, 4)))
    with pytest.raises(calque.TraceError):
        graph(other)


@pytest.mark.parametrize("trace", [calque.record, calque.trace])
def test_operators_of_an_input_with_a_gradient_refuse_one_without(trace: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.requires_grad else x * 3

    given = torch.ones(2, requires_grad=True)
    traced = trace(program, given)
    graph = traced.graph("aten") if trace is calque.record else calque.lower(traced, given)
    assert graph(torch.ones(2, requires_grad=True)).tolist() == [2, 2]
    with pytest.raises(calque.TraceError, match="requires_grad = True, called with False"):
        graph(torch.ones(2))
    assert JaxInterpreter(graph)(np.ones(2, np.float32)).tolist() == [2, 2]


def test_operators_refuse_inputs_that_share_memory_with_one_that_is_written() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    graph = calque.record(program, torch.ones(3), torch.ones(3)).graph("aten")
    assert graph(torch.ones(3), torch.ones(3)).tolist() == [3, 3, 3]
    both = torch.ones(3)
    with pytest.raises(calque.TraceError, match="do, and the graph writes"):
        graph(both, both)
    with pytest.raises(calque.TraceError, match="do, and the graph writes"):
        graph(both, both.view(3))


def test_a_strict_recording_raises_though_the_program_catches() -> None:
    def program(x: Tensor) -> Tensor:
        try:
            return x * x.sum().item()
        except Exception:
            return x

    with pytest.raises(calque.TraceError, match="item reads the value"):
        calque.record(program, torch.ones(2), strict=True)


def test_a_recording_of_a_program_that_raised_has_no_graph() -> None:
    def program(x: Tensor) -> Tensor:
        raise KeyError(str(x.relu().dim()))

    with pytest.raises(KeyError) as caught:
        calque.record(program, torch.ones(2))
    recording: Any = caught.value.recording  # type: ignore[attr-defined]
    assert "relu" in calque.show(recording).text()
    with pytest.raises(calque.TraceError, match="has raised KeyError"):
        recording.graph()


@pytest.mark.parametrize("read", ["mean", "var"])
def test_operators_refuse_an_input_that_shares_memory_with_a_buffer_that_is_written(
    read: Any,
) -> None:
    norm = torch.nn.BatchNorm1d(3)
    graph: Any = calque.record(norm, torch.ones(3, 3)).graph("aten")
    assert graph(torch.ones(3, 3)).tolist() == [[0, 0, 0]] * 3
    with pytest.raises(calque.TraceError, match="do, and the graph writes"):
        graph(getattr(graph, f"running_{read}").expand(3, 3))


def test_operators_refuse_to_write_to_a_parameter_that_is_given_as_an_input() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return x + self.scale

    graph: Any = calque.record(Scaled(), torch.ones(3)).graph("aten")
    assert graph(torch.ones(3)).tolist() == [3, 3, 3]
    with pytest.raises(calque.TraceError, match="do, and the graph writes"):
        graph(graph.scale)
    assert graph.scale.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (lambda x: x * len(x.nonzero()), "__len__"),
        (lambda x: x if x[x > 0].shape[0] > 1 else -x, "shape"),
        (lambda x: x * (x > 0).nonzero().numel(), "numel"),
        (lambda x: sum(x.nonzero()), "the number of parts of unbind"),
    ],
)
def test_a_size_that_depends_on_values_is_an_escape(program: Any, what: str) -> None:
    x = torch.tensor([1.0, 2.0, 0.0])
    recording = calque.record(program, x)
    assert [escape.what for escape in recording.escapes] == [what]
    torch.testing.assert_close(recording.graph()(x), program(x))
    with pytest.raises(calque.TraceError, match=what):
        recording.graph()(torch.tensor([1.0, 0.0, 0.0]))
    with pytest.raises(calque.TraceError, match=f"test_escapes.py.*{what} reads the value"):
        calque.record(program, x, strict=True)
    assert calque.record(lambda x: x[x > 0] * 2, x, strict=True).escapes == []


def test_how_often_a_tensor_was_written_to_is_checked() -> None:
    def asks(x: Tensor) -> Tensor:
        y = x.clone()
        y.add_(1)
        return y * 2 if x._version and y._version == 1 else y

    recording = calque.record(asks, torch.ones(2))
    graph = recording.graph()
    assert torch.equal(graph(torch.zeros(2)), torch.ones(2))
    with pytest.raises(calque.TraceError, match="_version gave 0 when this was recorded"):
        graph(torch.zeros(2).add_(1))
    with pytest.raises(calque.TraceError, match=r"reads the version(.|\n)*in asks"):
        recording.graph("aten")


def test_a_result_of_nowhere_is_told_at_the_program() -> None:
    kept = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            kept.append(x * 2)
            return x + 1

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0]

    def returns(x: Tensor) -> Any:
        kept.clear()
        y = Keeps.apply(x)
        return y, kept[0]

    problems = calque.record(returns, torch.ones(2)).problems
    assert any("in returns: a tensor is used that no recorded call" in each for each in problems)
