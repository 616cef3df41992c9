"""`torch.compile(..., backend="calque", options={"checks": True})`: errors that values decide."""

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F

DEVICES = ("jax", "cpu")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def compile(fn, checks=True):
    return torch.compile(fn, backend="calque", fullgraph=True, options={"checks": checks})


TABLE = torch.arange(12.0).reshape(4, 3)

BAD = {
    "index": (lambda t, i: t[i], [0, -4], [0, 4]),
    "index_put": (lambda t, i: t.index_put((i,), t[0]), [0, 3], [-5, 0]),
    "gather": (lambda t, i: t.gather(0, i[None]), [0, 3, 1], [0, 4, 1]),
    "embedding": (lambda t, i: F.embedding(i, t), [0, 3], [0, 4]),
    "cross_entropy": (lambda t, i: F.cross_entropy(t, i), [0, 1, 2, -100], [0, 1, 2, 3]),
    "remainder": (lambda t, i: 7 % i, [1, 2], [1, 0]),
    "inverse": (lambda t, i: torch.linalg.inv(torch.diag(i.float())), [1, 2], [1, 0]),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", BAD)
def test_bad_values_raise_as_they_do_eagerly(name, device):
    fn, good, bad = BAD[name]
    good, bad = torch.tensor(good), torch.tensor(bad)
    run = compile(fn)
    table = TABLE.to(device)
    torch.testing.assert_close(run(table, good.to(device)).cpu(), fn(TABLE, good))
    with pytest.raises(Exception) as eager:
        fn(TABLE.to("jax"), bad.to("jax"))
    with pytest.raises(type(eager.value)) as raised:
        run(table, bad.to(device))
    line = fn.__code__.co_firstlineno
    assert f"test_compile_checks.py:{line} in <lambda>: " in str(raised.value)
    torch.testing.assert_close(run(table, good.to(device)).cpu(), fn(TABLE, good))


@pytest.mark.parametrize("device", DEVICES)
def test_what_fails_has_changed_nothing(device):
    def step(index, weight, count):
        count.add_(1)
        return F.embedding(index, F.dropout(weight, 0.5))

    run = compile(step)
    weight = TABLE.to(device).requires_grad_()
    count = torch.zeros(3, device=device)
    run(torch.tensor([0, 3], device=device), weight, count).sum().backward()
    random, held = torch.jax.get_rng_state(), count.clone()
    with pytest.raises(IndexError, match="in step"):
        run(torch.tensor([0, 9], device=device), weight, count)
    assert torch.equal(count, held)
    assert torch.equal(random, torch.jax.get_rng_state())


def test_the_first_failure_of_several_is_raised_at_its_line():
    def f(table, index):
        rows = table[index]
        return rows, 7 % index

    with pytest.raises(IndexError) as raised:
        compile(f)(TABLE, torch.tensor([9, 0]))
    assert f"py:{f.__code__.co_firstlineno + 1} in f" in str(raised.value)


def test_control_flow_is_not_looked_into():
    def f(table, index):
        return torch.cond(table.sum() > 0, lambda i: table[i], lambda i: table[i] * 2, (index,))

    with torch.no_grad():
        assert compile(f)(TABLE, torch.tensor([1, 2])).tolist() == TABLE[1:3].tolist()


def test_without_checks_a_read_out_of_bounds_is_not_a_number():
    rows = compile(lambda t, i: t[i], checks=False)(TABLE, torch.tensor([1, 4]))
    assert rows[0].tolist() == [3, 4, 5]
    assert rows[1].isnan().all()


def test_checks_and_buckets_exclude_each_other():
    run = torch.compile(
        lambda x: x + 1, backend="calque", options={"checks": True, "buckets": "pow2"}
    )
    with pytest.raises(Exception, match="checks and buckets"):
        run(TABLE)
