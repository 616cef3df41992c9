"""What a traced function asks of values only to refuse them."""

from contextlib import nullcontext

import jax.numpy as jnp
import pytest
import torch

import calque
from tests.jitting.refusing import REFUSING, raises_if, raises_unless


@pytest.mark.parametrize("fn", REFUSING, ids=lambda f: f.__name__)
def test_a_branch_that_only_raises_is_not_taken(fn):
    good = torch.tensor([1.0, 2.0], device="jax")
    assert calque.jit(fn)(good).tolist() == [2.0, 3.0]


@pytest.mark.parametrize("fn", REFUSING, ids=lambda f: f.__name__)
def test_it_is_looked_at_when_the_program_has_run(fn):
    bad = torch.tensor([-1.0 if fn is raises_unless else 5.0, 2.0], device="jax")
    with pytest.raises((ValueError, AssertionError)):
        fn(bad)
    run = calque.jit(fn)
    assert run(torch.tensor([1.0, 2.0], device="jax")).tolist() == [2.0, 3.0]
    with pytest.raises(RuntimeError, match="the condition of this line does not hold: "):
        run(bad)


def test_nothing_is_written_before():
    state = torch.zeros(2, device="jax")

    def accumulate(x):
        state.add_(x)
        return raises_if(x)

    run = calque.jit(accumulate)
    run(torch.tensor([1.0, 2.0], device="jax"))
    with pytest.raises(RuntimeError, match=r"refusing.py:\d+.*if x.max\(\) > 3"):
        run(torch.tensor([5.0, 2.0], device="jax"))
    assert state.tolist() == [1, 2]


def test_where_nobody_looks_the_value_is_missed():
    with pytest.raises(calque.TraceError):
        calque.functional(raises_if)[0]({}, jnp.ones(2))


def chooses(x):
    if x.max() > 3:
        x = x * 2
    return x


def raises_on_one_way(x):
    if x.max() > 3:
        if x.ndim > 1:
            raise ValueError
        return x * 2
    return x


def is_caught(x):
    try:
        if x.max() > 3:
            raise ValueError
    except ValueError:
        return x * 2
    return x


def is_kept(x):
    large = bool(x.max() > 3)
    return x, large


def returns_early(x):
    if x.max() > 3:
        return x * 2
    raise_for = x + 1
    return raise_for


def loops(x):
    while x.max() > 3:
        x = x / 2
    return x


@pytest.mark.parametrize(
    "fn",
    [chooses, raises_on_one_way, is_caught, is_kept, returns_early, loops],
    ids=lambda f: f.__name__,
)
def test_any_other_branch_is_refused(fn):
    with pytest.raises(calque.TraceError, match="read as a Python number"):
        calque.jit(fn)(torch.tensor([1.0, 2.0], device="jax"))


def reads_a_row(x, i):
    return x[i]


def writes_a_row(x, i):
    x[i] = 0


def reads_a_slice(x, i):
    return x[: i + 1]


@pytest.mark.parametrize("fn", [reads_a_row, writes_a_row, reads_a_slice])
def test_an_index_without_a_dimension_is_refused_with_what_to_write_instead(fn):
    x, i = torch.eye(3, device="jax"), torch.tensor(1, device="jax")
    with pytest.raises(calque.TraceError, match=f"in {fn.__name__}: .* used as an index") as caught:
        calque.jit(fn)(x, i)
    assert "`x[i.reshape(1)]`" in str(caught.value)


def test_what_is_to_be_written_instead_works():
    @calque.jit
    def step(x, i, row):
        x[i.reshape(1)] = row
        return x[i.reshape(1)], x[i + torch.arange(2, device=i.device)]

    for index in (0, 1):
        x, i = torch.eye(3, device="jax"), torch.tensor(index, device="jax")
        row, rows = step(x, i, torch.full((3,), 7.0, device="jax"))
        assert row.tolist() == [[7, 7, 7]]
        assert rows.tolist() == x[index : index + 2].tolist()
        assert x[index].tolist() == [7, 7, 7]
    assert len(step.history) == 1


class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second


def returns_array(x):
    return jnp.sin(calque.to_jax(x))


def returns_array_in_an_object(x):
    return Pair(x * 2, jnp.sin(calque.to_jax(x)))


KEPT = []


def stores_array(x):
    KEPT.append(Pair(1, jnp.sin(calque.to_jax(x))))
    return x


@pytest.mark.parametrize(
    "fn", [returns_array, returns_array_in_an_object, stores_array], ids=lambda f: f.__name__
)
def test_an_array_of_jax_that_outlives_the_trace_is_refused(fn):
    with pytest.raises(calque.TraceError, match=r"array of JAX of shape \(2,\)[^$]*to_torch"):
        calque.jit(fn)(torch.ones(2, device="jax"))
    assert not KEPT


def test_an_array_of_jax_that_was_there_before_is_returned():
    array = jnp.ones(2)
    assert calque.jit(lambda x: (x, array))(torch.ones(2, device="jax"))[1] is array


def test_results_of_a_function_that_asks_which_of_them_have_gradients_go_backward_together():
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, a, b):
            return a * 2 + (b * 3 if b is not None else 100)

    run = calque.jit(lambda x: Both.apply(x))
    x = torch.ones(2, device="jax", requires_grad=True)
    a, b = run(x)
    (a + b).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [5.0, 5.0]
    with pytest.raises(calque.TraceError, match="only some results of a jitted function"):
        run(x)[0].sum().backward()
    x.grad = None
    calque.jit(lambda x: Both.apply(x)[0])(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [102.0, 102.0]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_at_the_users_line():
    parts = [torch.ones(2, 3), torch.ones(1, 3)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    on_device = torch.nested.nested_tensor(parts, layout=torch.jagged, device="jax")
    strided = torch.ones(3, device="jax"), torch._nested_tensor_from_tensor_list(parts)
    doubled = calque.jit(lambda x, *_: x * 2)
    for given in ((jagged,), (on_device,), strided):
        with pytest.raises(calque.UnsupportedOpError, match="a nested tensor is passed"):
            doubled(*given)
    held = calque.jit(lambda x: x.sum() + jagged.values().sum())
    with pytest.raises(calque.UnsupportedOpError, match=r"test_jit_refusals.py:\d+ in .*nested"):
        held(torch.ones(3, device="jax"))


def test_a_nested_tensor_inside_of_a_function_is_an_intermediate_value():
    def doubled(a, b):
        nested = torch.nested.as_nested_tensor([a, b], layout=torch.jagged)
        return (nested * 2).values()

    parts = [torch.ones(2, 3, device="jax"), torch.ones(1, 3, device="jax")]
    assert calque.jit(doubled)(*parts).equal(doubled(*parts))


def test_an_operator_without_a_rule_is_refused_at_the_users_line():
    with torch.library._scoped_library("calque_test_refused", "FRAGMENT") as library:
        library.define("unknown(Tensor x) -> Tensor")
        library.impl("unknown", torch.empty_like, "Meta")
        operator = torch.ops.calque_test_refused.unknown

        def fn(x):
            return operator(x)

        for run in (fn, calque.jit(fn)):
            with (
                pytest.warns(calque.FallbackWarning) if run is fn else nullcontext(),
                pytest.raises(calque.UnsupportedOpError, match=r"refusals.py:\d+ in fn: .*no rule"),
            ):
                run(torch.ones(3, device="jax"))
