"""What jitted functions compute on the CPU, before it goes to the device: each call repeats it."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import calque

MEAN = torch.tensor([1.0, 2, 3])
ROWS = torch.arange(30000.0).view(10000, 3)


def _table(i):
    return (torch.arange(12.0).view(4, 3) * i,)


def _bytes(i):
    return ((torch.arange(12).view(4, 3) * i % 256).to(torch.uint8),)


def _two(i):
    return torch.ones(3) * i, torch.ones(3) + i


def _constant_changed(D, x):
    c = torch.ones(3)
    y = x + c
    c.add_(1)
    return y.to(D), (x + c).to(D)


def _written(D, x):
    y = x * 2
    z = y + 1
    y.view(-1)[:5].div_(4)
    y[0] = 5
    y[y > 9] = -1
    return y.to(D), z.to(D)


def _summed(D, x):
    total = torch.zeros(4, 3)
    total += x
    total[1] += x[0]
    return total.to(D)


def _padded(D, xs):
    found = torch.zeros(len(xs), 5, dtype=torch.long)
    for k, x in enumerate(xs):
        found[k, : len(x)] = x
    return found.to(D)


def _permuted(D, x):
    order = torch.arange(3).flip(0)
    y = x[:, order]
    order.add_(-5)
    return y.to(D)


def _in_branch(D, x):
    y = x * 1
    ones = torch.ones(3).to(D)
    return torch.cond(ones.sum() > 1, lambda a: a * 2, lambda a: a, (ones,)) * y.to(D)


PROGRAMS = {
    "converted": (lambda D, x: (x.float() / 255).to(D), _bytes),
    "in place": (lambda D, x: x.float().div_(255).to(D), _bytes),
    "viewed": (lambda D, x: x.view(-1).to(D) + x.unsqueeze(1).to(D).sum(), _table),
    "large": (
        lambda D, x: x.view(64, 3, 40, 40).to(D).sum(),
        lambda i: (torch.ones(64, 4800) * i,),
    ),
    "parts": (lambda D, x: (x[:, 0].contiguous().to(D), x[1:].contiguous().to(D)), _table),
    "one item of several": (lambda D, x: x.argsort(0).to(D), lambda i: (torch.eye(3) * (i - 2),)),
    "iterated": (lambda D, x: [row.to(D) * 2 for row in x], _table),
    "joined": (lambda D, x, y: torch.cat([x, y]).to(D), _two),
    "one object": (lambda D, x, y: (x * 2).to(D) + (y * 3).to(D), lambda i: (_two(i)[0],) * 2),
    "normalized": (lambda D, x: ((x - MEAN) / x.std()).to(D), _table),
    "rows of the state": (lambda D, x: ROWS[x].to(D), lambda i: (torch.tensor([i, i + 1]),)),
    "constant changed": (_constant_changed, _table),
    "written": (_written, _table),
    "summed": (_summed, _table),
    "padded": (_padded, lambda i: ([torch.arange(3) * i, torch.arange(2) + i],)),
    "padded by PyTorch": (lambda D, x: F.pad(x, (0, 1)).to(D), _table),
    "permuted": (_permuted, _table),
    "a scalar": (lambda D, x: torch.ones(3).to(D) * x.mean(), _table),
    "a mask": (lambda D, x: ((x > 0) & (x < 6)).to(D), _table),
    "a view returned": (lambda D, x: (x.view(-1), (x * 2).to(D)), _table),
    "made by torch.tensor": (lambda D, x: torch.as_tensor(x, device=D) * 2, _table),
    "beside a branch": (_in_branch, lambda i: (torch.ones(3) * i,)),
}


def _compare(result, expected):
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(result.cpu(), expected, equal_nan=True)
        assert result.stride() == expected.stride()
    else:
        assert type(result) is type(expected)
        for one, other in zip(result, expected, strict=True):
            _compare(one, other)


@pytest.mark.parametrize("name", PROGRAMS)
def test_computations_are_repeated(name):
    function, given = PROGRAMS[name]
    run = calque.jit(lambda *args: function("jax", *args))
    for i in range(4):
        _compare(run(*given(i)), torch.no_grad()(function)("cpu", *given(i)))
    assert len(run.history) == 1


@pytest.mark.parametrize(
    ("fn", "given"),
    [
        (lambda D, x: (x * 2).sum().item() * torch.ones(3).to(D), _table),
        (lambda D, x: (x * 2).to(D) if (x * 2).sum() > 70 else x.to(D), _table),
        (lambda D, x: (x * 3).to(D) + np.asarray(x * 3).sum().item(), _table),
        (lambda D, x: torch.from_numpy((x * 3).numpy() + 1).to(D), _table),
        (lambda D, x: ((y := x * 3), y.to(D).sum()), _table),
        (lambda D, x: x.nonzero().shape[0] * torch.ones(2).to(D), lambda i: (torch.eye(3)[:i],)),
    ],
)
def test_values_that_are_needed_are_compared(fn, given):
    run = calque.jit(lambda *args: fn("jax", *args))
    for i in (1, 2, 2, 3, 1):
        _compare(run(*given(i)), fn("cpu", *given(i)))


def test_a_tensor_that_is_also_a_variable():
    table = torch.ones(3)
    run = calque.jit(lambda x: (x * 2).to("jax") + (table * 3).to("jax"))
    for i, x in enumerate((table, table, table * 2, table, table * 3)):
        assert run(x).tolist() == (x * 2 + table * 3).tolist()
        table.fill_(i)


def test_errors_of_computations_are_raised():
    state = SimpleNamespace(calls=0)

    @calque.jit
    def run(index):
        state.calls += 1
        return torch.arange(4.0)[index].to("jax")

    assert run(torch.tensor([0, 1])).tolist() == [0, 1]
    assert run(torch.tensor([2, 3])).tolist() == [2, 3]
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        run(torch.tensor([0, 9]))
    assert run(torch.tensor([3, 3])).tolist() == [3, 3]
    assert len(run.history) == 1


def test_a_caught_error_of_a_computation():
    def read(index, device):
        try:
            found = torch.arange(4.0)[index]
        except IndexError:
            found = torch.zeros(2)
        return found.to(device)

    run = calque.jit(read)
    for index in ([9, 1], [0, 1], [2, 3], [9, 9], [7, 0]):
        assert run(torch.tensor(index), "jax").tolist() == read(torch.tensor(index), "cpu").tolist()


def test_sizes_that_depend_on_values_are_compared():
    def masked(x, device):
        found = x[x > 3]
        return found.sum().to(device) * len(found)

    run = calque.jit(masked)
    for i in (1, 1, 2, 0, 2, 5):
        (x,) = _table(i)
        assert run(x, "jax").item() == masked(x, "cpu").item()


@pytest.mark.parametrize(
    ("fn", "traces"),
    [
        (lambda s, D: ROWS[s.i * 4 : s.i * 4 + 4].to(D), 1),
        (lambda s, D: ROWS[s.i].to(D), 1),
        (lambda s, D: ROWS[:, 1][-s.i].to(D), 1),
        (lambda s, D: ROWS[torch.arange(20)[s.i : s.i + 2]].to(D), 1),
        (lambda s, D: torch.linspace(0, 1, 9)[s.i].to(D), 1),
        (lambda s, D: (MEAN * s.i).to(D), 1),
        (lambda s, D: (MEAN.long() * s.i > 3).to(D), 1),
        (lambda s, D: MEAN.clamp(max=s.i / 2).to(D), 1),
        (lambda s, D: ROWS[s.i].sum().item() * torch.ones(2).to(D), 5),
    ],
)
def test_numbers_that_change(fn, traces):
    state = SimpleNamespace(i=1)

    def step(device):
        found = fn(state, device)
        state.i += 1
        return found

    run = calque.jit(lambda: step("jax"))
    for i in range(1, 6):
        found, state.i = run(), i
        _compare(found, step("cpu"))
    assert len(run.history) == traces


def test_positions_out_of_range():
    state = SimpleNamespace(i=0)
    rows = ROWS[:10].clone()
    run = calque.jit(lambda: rows[state.i].to("jax"))
    for state.i in (0, 3, -1, -10, 9, 10, 5, -11, True, 2**40, 4):
        try:
            expected = rows[state.i]
        except IndexError:
            with pytest.raises(IndexError, match="out of bounds"):
                run()
        else:
            assert run().tolist() == expected.tolist()


def test_state_that_is_replaced():
    state = SimpleNamespace(rows=ROWS.clone())
    run = calque.jit(lambda index: state.rows[index].to("jax"))
    index = torch.tensor([1, 5])
    for step in range(6):
        assert run(index).tolist() == state.rows[index].tolist()
        if step == 1:
            state.rows.mul_(2)
        elif step == 2:
            state.rows = state.rows + 1
        elif step == 3:
            state.rows.data = state.rows - 7


def test_derivatives_of_what_depends_on_a_computation():
    weight = torch.ones(3, device="jax", requires_grad=True)

    @calque.jit
    def loss(x):
        return ((x * 2).to("jax") * weight**3).sum()

    for i in range(3):
        (gradient,) = torch.autograd.grad(loss(torch.ones(3) * i), weight, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), weight)
        assert gradient.tolist() == [6 * i] * 3
        assert second.tolist() == [12 * i] * 3
    assert len(loss.history) == 1


@pytest.mark.parametrize("factor", [2, MEAN], ids=["number", "state"])
@pytest.mark.usefixtures("few_objects")
def test_arguments_are_not_kept_alive(factor):
    run = calque.jit(lambda x: (x * factor).to("jax"))
    x = torch.ones(3)
    seen = weakref.ref(x)
    run(x)
    run(torch.ones(3))
    del x
    gc.collect()
    assert seen() is None


def _over_zeros(D, x):
    y = torch.zeros(4, 3)
    array = y.numpy()
    y += x
    array[0] = 7
    return y.to(D)


def _over_an_array(D, x):
    array = np.zeros((4, 3), np.float32)
    y = torch.from_numpy(array)
    y.add_(x)
    array[1] = 50
    return y.to(D)


def _read_through_an_array(D, x):
    y = torch.zeros(4, 3)
    array = np.asarray(y)
    y.copy_(x)
    return y.to(D), torch.from_numpy(array * 2).to(D)


def _written_after_a_copy(D, x):
    y = torch.zeros(3)
    first = y.to(D, copy=True)
    y.add_(1)
    second = y.to(D, copy=True)
    torch.mul(y, 4, out=y)
    return first, second, y.to(D), x.to(D)


@pytest.mark.parametrize(
    "fn", [_over_zeros, _over_an_array, _read_through_an_array, _written_after_a_copy]
)
def test_tensors_that_the_function_creates_and_writes_to(fn):
    run = calque.jit(lambda x: fn("jax", x))
    for i in (1, 2, 2, 3):
        _compare(run(*_table(i)), fn("cpu", *_table(i)))


def _flagged(rows):
    rows.requires_grad_()


def _replaced(rows):
    rows.data = torch.arange(6.0)[::2]


def _resized(rows):
    rows.resize_(1, 2)


@pytest.mark.parametrize("change", [_flagged, _replaced, _resized])
@pytest.mark.parametrize("factor", [1, 2])
def test_changed_tensors_of_the_state(change, factor):
    rows = torch.ones(3)

    def fn(device):
        found = (rows if factor == 1 else rows * factor).to(device)
        return found.requires_grad, found.shape, found.detach().sum() * len(rows)

    run = calque.jit(fn)
    for i in range(5):
        if i == 3:
            change(rows)
        assert run("jax") == fn("cpu")
    assert len(run.history) == 2
