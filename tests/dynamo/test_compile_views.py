"""Results of compiled functions that are views, at places that vary from call to call."""

import pytest
import torch
import torch._dynamo

from calque.errors import EagerWarning, TraceError
from tests.dynamo.agreeing import agree

DEVICES = ("cpu", "jax")


def matrix(device, size=6, grad=False):
    values = torch.arange(1.0, size * size + 1).reshape(size, size).to(device)
    return values.requires_grad_(grad)


def offsets(argument):
    """Calls with an argument and a number that varies."""
    return lambda device: [(*argument(device), i) for i in (0, 1, 2)]


ARGUMENTS = {
    "whole": lambda device: (matrix(device, 4),),
    "rows": lambda device: ([base := matrix(device)], base[1:5, :4]),
    "transposed rows": lambda device: ([base := matrix(device)], base[1:5].t()[1:]),
    "differentiable": lambda device: ([leaf := matrix(device, 4, True)], leaf * 1),
    "differentiable rows": lambda device: ([leaf := matrix(device, 6, True)], (leaf * 1)[1:5]),
}


def views(x, i):
    return (
        x[i],
        x[:, i],
        x[i : i + 2],
        x.narrow(1, i, 2),
        x.split([i, x.shape[0] - i])[1],
        x.unfold(0, 2, i + 1)[0],
        x.diagonal(i),
        x[: -i - 1],
        x[:: i + 1],
        x[i].expand(i + 2, -1),
        x.t()[i, i:],
        x[i:, None].squeeze(1)[0],
        x[i].view(torch.int32),
        x.detach()[i],
        i,
        x.stride(0) + i,
    )


def strided(x, i):
    return x.as_strided((2, 2), (1, 3), i), x.as_strided((2, i + 1), (i + 1, 1)), x * 2


def views_of_an_intermediate(x, i):
    y = x * 2
    return y[i], y, y[:, i:], y.unbind()[1][i:], y.reshape(-1)[i:]


def a_view_that_is_alone(x, i):
    return (x * 2)[i:, i]


def written_and_viewed(x, i):
    x.add_(1)
    return x[i], x.t()[i:], x[i:]


def written_through_a_view(x, i):
    row = x[i]
    row.mul_(3)
    return row, x.sum()


def an_intermediate_written_through_a_view(x, i):
    y = x * 2
    row = y[i]
    row.mul_(3)
    return row, y[:, i]


@pytest.mark.sampled(8)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    ("function", "argument", "device"),
    [
        (views, "whole", "cpu"),
        (views, "rows", "jax"),
        (views, "transposed rows", "cpu"),
        (strided, "rows", "cpu"),
        (strided, "whole", "jax"),
        (views_of_an_intermediate, "rows", "cpu"),
        (views_of_an_intermediate, "differentiable", "jax"),
        (a_view_that_is_alone, "whole", "cpu"),
        (written_and_viewed, "whole", "jax"),
        (written_and_viewed, "rows", "cpu"),
        (written_and_viewed, "transposed rows", "jax"),
        (written_and_viewed, "differentiable rows", "cpu"),
        (written_through_a_view, "rows", "jax"),
        (written_through_a_view, "differentiable rows", "cpu"),
        (an_intermediate_written_through_a_view, "differentiable", "cpu"),
    ],
)
def test_views_at_a_number_that_varies(function, argument, device):
    agree(function, offsets(ARGUMENTS[argument]), device)


@pytest.mark.parametrize("device", DEVICES)
def test_views_of_arguments_of_sizes_and_strides_that_vary(device):
    def calls(device):
        for size in (4, 5, 6):
            base = matrix(device, size)
            yield [base], base[1:, ::2]

    agree(lambda x: (x[-1], x.t()[1:], x[1:], x.shape, x.stride(), x * 2), calls, device)


@pytest.mark.parametrize("device", DEVICES)
def test_views_of_complex_numbers_and_other_dtypes(device):
    def calls(device):
        for i in (0, 2, 4):
            base = torch.arange(8.0).to(device)
            real = base[1:7]
            yield [base], real, torch.complex(real, real + 1), torch.complex(real, real).conj(), i

    def function(x, z, conjugate, i):
        return (
            z[i:],
            z.real[i:],
            torch.view_as_real(z)[i],
            z.imag[i],
            conjugate[i:],
            conjugate.conj()[i:],
            x[i:].view(torch.int32),
        )

    agree(function, calls, device)


@pytest.mark.parametrize("device", ["cpu"])
def test_views_whose_size_varies_where_sizes_are_padded(device):
    calls = offsets(ARGUMENTS["rows"])
    agree(lambda x, i: (x[i:], x[i] * 2), calls, device, options={"buckets": "pow2"})


@pytest.mark.parametrize("device", DEVICES)
def test_a_window_of_some_memory_transposed_in_place(device):
    def calls(device):
        for start in (2, 4):
            base = torch.arange(20.0).to(device)
            yield [base], base[start : start + 12].view(3, 4)

    agree(lambda x: x.t_() + 1, calls, device)
    agree(lambda x: x.t_().mul_(2) + 1, calls, device)


def test_a_view_that_lies_nowhere_is_refused_with_its_line():
    def function(x, i):
        x.mul_(2)
        return x.as_strided((2, 2), (5, 7), i)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="calque")
    rows = matrix("jax")[1:5, 1:5]
    compiled(rows, 0)
    before = rows.clone()
    with pytest.raises(TraceError, match=r"test_compile_views\.py.*clone\(\)"):
        compiled(rows, 1)
    assert torch.equal(rows, before)


def halves(device):
    memory = torch.arange(8.0).to(device)
    return [memory], memory[:4], memory[4:]


def overlapping(device, start=2):
    memory = torch.arange(8.0).to(device)
    return [memory], memory[:4], memory[start : start + 4]


def alone(device):
    return torch.arange(4.0).to(device), torch.arange(1.0, 5.0).to(device)


@pytest.mark.parametrize("device", DEVICES)
def test_arguments_that_overlap_and_views_of_them(device):
    def function(x, y):
        x.mul_(2)
        y.add_(1)
        return x, y[1:], x.view(2, 2), y[0], x + y

    agree(function, lambda device: [overlapping(device), overlapping(device)], device)


@pytest.mark.filterwarnings("ignore:a compiled function writes to an argument")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "calls",
    [
        lambda device: [overlapping(device), overlapping(device, 1), halves(device)],
        lambda device: [alone(device), overlapping(device), alone(device), overlapping(device, 1)],
        lambda device: [halves(device), overlapping(device), halves(device)],
    ],
)
def test_arguments_that_overlap_otherwise_later(device, calls):
    def function(x, y):
        x.mul_(2)
        return x + y, y[1:]

    agree(function, calls, device)


def test_what_runs_uncompiled_says_so():
    def function(x, y):
        x.mul_(2)
        return x + y

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="calque")
    compiled(*alone("jax"))
    with pytest.warns(EagerWarning, match=r"overlap .* clone\(\)"):
        compiled(*overlapping("jax")[1:])
