"""NumPy arrays among the arguments of jitted functions, new ones in each call."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import calque

G = np.ones(3, np.float32)


def _rows(i):
    return (np.arange(12, dtype=np.float32).reshape(4, 3) * i,)


def _bytes(i):
    return ((np.arange(12).reshape(4, 3) * i % 256).astype(np.uint8),)


def _masked(D, a):
    found = a[a > 5]
    return torch.from_numpy(found).to(D).sum() * len(found)


PROGRAMS = {
    "from_numpy": (lambda D, a: torch.from_numpy(a).to(D), _rows, 2),
    "as_tensor": (lambda D, a: torch.as_tensor(a, dtype=torch.float64, device=D), _rows, 2),
    "tensor": (lambda D, a: torch.tensor(a, device=D) * 2, _rows, 2),
    "converted": (lambda D, a: torch.from_numpy(a).float().div(255).to(D), _bytes, 2),
    "NumPy": (lambda D, a: torch.from_numpy(a.astype(np.float32) / 255.0).to(D), _bytes, 2),
    "normalized": (lambda D, a: torch.from_numpy((a - a.mean(0)) / (a.std(0) + 1)).to(D), _rows, 2),
    "transposed": (lambda D, a: torch.from_numpy(np.expand_dims(a.T, 0).copy()).to(D), _rows, 2),
    "asarray": (lambda D, a: torch.tensor(np.asarray(a, dtype=np.float64), device=D), _rows, 2),
    "stacked": (
        lambda D, one: torch.from_numpy(np.stack(one)).to(D),
        lambda i: ([np.ones(3) * i, np.ones(3) + i],),
        2,
    ),
    "dict": (
        lambda D, b: [torch.from_numpy(one).to(D) for one in b.values()],
        lambda i: ({"x": np.ones(3) * i, "y": np.arange(3) + i},),
        2,
    ),
    "one array twice": (
        lambda D, a, b: (torch.from_numpy(a) + torch.from_numpy(b)).to(D),
        lambda i: (_rows(i)[0],) * 2,
        2,
    ),
    "length": (lambda D, a: torch.from_numpy(a).to(D) * len(a) * a.shape[1], _rows, 2),
    "rows": (lambda D, a: [torch.from_numpy(row).to(D) for row in a], _rows, 2),
    "clipped into itself": (lambda D, a: torch.tensor(np.clip(a, 0, 1), device=D), _rows, 2),
    "reversed": (lambda D, a: torch.from_numpy(a[::-1].copy()).to(D), _rows, 2),
    "beside a constant": (lambda D, a: torch.from_numpy(a + G).to(D), _rows, 2),
    "sizes that depend on values": (_masked, _rows, None),
    "compared": (lambda D, a: torch.ones(2).to(D) * (2 if a.sum() > 100 else 1), _rows, None),
    "an item": (lambda D, a: torch.ones(2).to(D) * float(a[0, 1]), _rows, None),
    "its class": (lambda D, a: torch.from_numpy(a).to(D) * (type(a) is np.ndarray), _rows, None),
    "read back": (
        lambda D, a: torch.from_numpy(torch.from_numpy(a).numpy() + 1).to(D),
        _rows,
        None,
    ),
    "as a sequence": (lambda D, a: torch.Tensor(a).to(D), _rows, None),
    "texts": (
        lambda D, a: torch.ones(2).to(D) * len(a),
        lambda i: (np.array(["a" * (i + 1)]),),
        None,
    ),
    "shapes": (lambda D, a: torch.from_numpy(a).to(D), lambda i: (np.ones(3 + i % 2) * i,), 4),
    "strides": (
        lambda D, a: torch.from_numpy(a).contiguous().to(D),
        lambda i: (np.asfortranarray(_rows(i)[0]) if i % 2 else _rows(i)[0],),
        None,
    ),
}


def _compare(result, expected):
    if isinstance(expected, list):
        for one, other in zip(result, expected, strict=True):
            _compare(one, other)
    else:
        torch.testing.assert_close(result.cpu(), expected)
        assert result.stride() == expected.stride()


@pytest.mark.parametrize("name", PROGRAMS)
def test_new_arrays(name):
    function, given, traces = PROGRAMS[name]
    run = calque.jit(lambda *args: function("jax", *args))
    for i in (0, 1, 2, 3, 4, 2):
        _compare(run(*given(i)), function("cpu", *given(i)))
    assert traces in (None, len(run.history))


def test_strides_of_equal_arrays_are_told_apart():
    run = calque.jit(lambda a: torch.from_numpy(a).to("jax"))
    for make in (np.ascontiguousarray, np.asfortranarray):
        array = make(np.ones((2, 3)))
        assert run(array).stride() == torch.from_numpy(array).stride()


def test_an_array_that_is_changed_between_calls():
    buffer = np.zeros(3, np.float32)
    run = calque.jit(lambda a: torch.as_tensor(a, device="jax") * 2)
    for i in range(5):
        buffer[:] = i
        assert run(buffer).tolist() == [2 * i] * 3
    assert len(run.history) == 2


def test_an_array_that_is_also_a_variable():
    held = np.ones(3)

    def both(a, device):
        return torch.from_numpy(a).to(device) + torch.from_numpy(held * 2).to(device)

    run = calque.jit(both)
    for i in range(6):
        held[:] = i
        array = np.ones(3) * 7 if i % 3 == 1 else held
        assert run(array, "jax").tolist() == both(array, "cpu").tolist()


def test_arrays_that_the_function_keeps_or_returns():
    state = SimpleNamespace(last=None)

    def keep(a, device):
        state.last = a
        return a, a * 2, torch.from_numpy(a).to(device)

    run = calque.jit(keep)
    for i in range(4):
        (array,) = _rows(i)
        same, twice, tensor = run(array, "jax")
        assert same is array is state.last
        assert type(twice) is np.ndarray
        assert twice.tolist() == (array * 2).tolist()
        assert tensor.tolist() == array.tolist()


def test_writes_to_arrays_raise_as_for_equal_ones():
    def write(a):
        np.copyto(a, 3)
        return torch.from_numpy(a).to("jax")

    run = calque.jit(write)
    for i in range(3):
        (array,) = _rows(i)
        with pytest.raises(calque.TraceError, match="written to without an operator"):
            run(array)


def test_derivatives_of_what_depends_on_an_array():
    weight = torch.ones(3, device="jax", requires_grad=True)
    loss = calque.jit(lambda a: (torch.from_numpy(a).to("jax") * weight**3).sum())
    for i in range(4):
        (gradient,) = torch.autograd.grad(loss(G * i), weight, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), weight)
        assert gradient.tolist() == [3 * i] * 3
        assert second.tolist() == [6 * i] * 3
    assert len(loss.history) == 2


def test_arrays_of_several_threads():
    run = calque.jit(lambda a, n: torch.from_numpy(a).to("jax") * n)
    for i in range(3):
        run(np.ones(3) * i, i)
    wrong = []

    def work(n):
        for i in range(20):
            found = run(np.ones(3) * (100 * n + i), n).tolist()
            if found != [n * (100 * n + i)] * 3:
                wrong.append((n, i, found))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []


@pytest.mark.parametrize(
    "write",
    [
        lambda a, out: np.clip(a, 0, 1, out=out),
        lambda a, out: np.clip(a, 0, 1, out),
        lambda a, out: a.cumsum(0, out=out),
        lambda a, out: np.stack([a[0], a[1]], out=out[:2]),
        lambda a, out: np.copyto(out, a),
        lambda a, out: np.add(a, 1, out),
    ],
)
def test_results_that_numpy_writes_to_another_array(write):
    held = np.zeros((4, 3), np.float32)

    def fn(a, device):
        write(a, held)
        return torch.as_tensor(a).to(device).sum()

    run = calque.jit(fn)
    for i in (1, 2, 3, 1):
        expected, after = fn(*_rows(i), "cpu"), held.copy()
        held[:] = 0
        assert run(*_rows(i), "jax").item() == expected.item()
        assert held.tolist() == after.tolist()
        held[:] = 0


def test_numpy_raises_in_each_call_where_the_function_asks_it_to():
    def inverse(a, device):
        with np.errstate(divide="raise"):
            found = np.log(a)
        return torch.from_numpy(found).to(device)

    run = calque.jit(inverse)
    for i in (1, 2, 3, 0, 4):
        array = np.ones(3) * i
        if i:
            assert run(array, "jax").tolist() == inverse(array, "cpu").tolist()
        else:
            with pytest.raises(FloatingPointError, match="divide by zero"):
                run(array, "jax")
    assert len(run.history) == 2


@pytest.mark.parametrize(
    "over",
    [
        torch.from_numpy,
        torch.as_tensor,
        lambda a: torch.from_numpy(a[1:])[1:],
        lambda a: torch.from_numpy(a.T).numpy(),
    ],
)
def test_tensors_over_an_array_that_the_function_returns(over):
    def both(a, device):
        found = over(a)
        return found, torch.from_numpy(a * 2).to(device)

    run = calque.jit(both)
    for i in (1, 2, 3, 1):
        (array,) = _rows(i)
        found, twice = run(array, "jax")
        assert twice.tolist() == (array * 2).tolist()
        array[:] = i + 100
        assert found.tolist() == over(array).tolist()
