"""`calque.jit(checks=True)`: errors that depend on values, as PyTorch raises them eagerly."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import calque


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="jax")


def index(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, device="jax")


def table() -> torch.Tensor:
    return torch.arange(12.0, device="jax").reshape(4, 3)


BAD: dict[str, tuple[Callable[..., object], list[int], list[int]]] = {
    "index": (lambda i: table()[i], [0, -4], [0, 4]),
    "index_put": (lambda i: table().index_put((i,), ones(3)), [0, 3], [-5, 0]),
    "mask and index": (lambda i: table()[i > 0, index([0, 1])], [1, 2, 0, 0], [1, 2, 3, 0]),
    "gather": (lambda i: table().gather(0, i[None]), [0, 3, 1], [0, 4, 1]),
    "scatter": (lambda i: table().scatter(0, i[None], 1.0), [0, 3, 1], [0, 4, 1]),
    "index_select": (lambda i: table().index_select(1, i), [0, 2], [0, 3]),
    "index_add": (lambda i: table().index_add(0, i, table()[:2]), [0, 2], [0, 5]),
    "take": (lambda i: table().take(i), [0, 11], [0, 12]),
    "embedding": (lambda i: F.embedding(i, table()), [0, 3], [0, 4]),
    "cross_entropy": (lambda i: F.cross_entropy(table(), i), [0, 1, 2, -100], [0, 1, 2, 3]),
    "floor_divide": (lambda i: index([1, 2]) // i, [1, 2], [1, 0]),
    "remainder": (lambda i: index([1, 2]) % i, [1, 2], [1, 0]),
    "inverse": (lambda i: torch.linalg.inv(torch.diag(i.float())), [1, 2], [1, 0]),
    "cholesky": (lambda i: torch.linalg.cholesky(torch.diag(i.float())), [1, 2], [1, -2]),
    "solve": (lambda i: torch.linalg.solve(torch.diag(i.float()), ones(2)), [1, 2], [0, 2]),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", BAD)
def test_bad_values_raise_as_they_do_eagerly(name):
    fn, good, bad = BAD[name]
    jitted = calque.jit(fn, checks=True)
    assert torch.equal(jitted(index(good)), fn(index(good)))
    with pytest.raises(Exception) as eager:
        fn(index(bad))
    with pytest.raises(type(eager.value)) as raised:
        jitted(index(bad))
    assert "test_jit_checks.py:" in str(raised.value)
    assert torch.equal(jitted(index(good)), fn(index(good)))


def test_the_first_failure_is_raised_at_its_line():
    @calque.jit(checks=True)
    def f(i, divisor):
        rows = table()[i]
        return rows, index([1, 2]) // divisor

    with pytest.raises(IndexError, match=r"test_jit_checks.py:\d+ in f: index 9 is out of bounds"):
        f(index([9, 0]), index([0, 1]))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        f(index([1, 0]), index([0, 1]))


def test_a_training_step_that_fails_has_changed_nothing():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(), torch.nn.Linear(4, 3)
    ).to("jax")
    optimizer = torch.optim.AdamW(model.parameters())

    @calque.jit(checks=True)
    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step(index([0, 1, 2]), index([0, 1, 2]))
    before = [t.clone() for t in model.state_dict().values()]
    moments = [s["exp_avg"].clone() for s in optimizer.state.values()]
    random = torch.jax.get_rng_state()
    with pytest.raises(IndexError, match="Target 3 is out of bounds"):
        step(index([0, 1, 2]), index([0, 3, 2]))
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert all(
        torch.equal(m, s["exp_avg"]) for m, s in zip(moments, optimizer.state.values(), strict=True)
    )
    assert torch.equal(random, torch.jax.get_rng_state())
    step(index([0, 1, 2]), index([0, 1, 2]))
    assert len(step.history) == 1


def test_differentiable_results_are_checked_too():
    weight = table().requires_grad_()
    jitted = calque.jit(lambda i: F.embedding(i, weight).sum(), checks=True)
    jitted(index([1, 1])).backward()
    assert weight.grad is not None
    assert weight.grad[1].tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(IndexError):
        jitted(index([7, 1]))


def test_without_checks_a_read_out_of_bounds_is_not_a_number():
    jitted = calque.jit(lambda i: (table()[i], F.embedding(i, table())))
    for rows in jitted(index([1, 4])):
        assert rows[0].tolist() == [3.0, 4.0, 5.0]
        assert rows[1].isnan().all()
