"""In-place, `out=` and view calls take a shorter way once they were made, with the same results."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import calque
from calque.device.kernels import fast_path

REPEATED = 6  # the first calls do not take the fast path
Program = Callable[[torch.Tensor, torch.Tensor], Any]

TARGETS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x,
    "row": lambda x: x[1],
    "rows": lambda x: x[1:],
    "steps": lambda x: x[:, ::2],
    "transposed": lambda x: x.t(),
    "flat": lambda x: x.view(-1),
    "element": lambda x: x[0, 2],
    "diagonal": lambda x: x.diagonal(),
    "empty": lambda x: x[3:],
    "expanded": lambda x: x[:1].expand(3, 4),
    "bits": lambda x: x.view(torch.int32),
    "detached": lambda x: x.detach(),
}
WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add a number": lambda t, x: t.add_(1.5),
    "add itself": lambda t, x: t.add_(t),
    "add the whole": lambda t, x: t.add_(x),
    "add a row": lambda t, x: t.add_(x[0]),
    "add scaled": lambda t, x: t.add_(t.clone(), alpha=0.5),
    "divide, rounded": lambda t, x: t.div_(2, rounding_mode="floor"),
    "clamp": lambda t, x: t.clamp_(-1, max=1),
    "negate": lambda t, x: t.neg_(),
    "fill": lambda t, x: t.fill_(2),
    "fill, too large": lambda t, x: t.fill_(1e300),
    "zero": lambda t, x: t.zero_(),
    "root": lambda t, x: t.abs_().sqrt_(),
    "compare": lambda t, x: t.gt_(0.5),
    "write out": lambda t, x: torch.mul(t.clone(), 2, out=t),
    "write out in place": lambda t, x: torch.add(t, t, out=t),
    "join out in place": lambda t, x: torch.cat([t, t[:0]], out=t),
    "put": lambda t, x: t.index_put_((torch.zeros(1, dtype=torch.long, device=x.device),), x[0, 1]),
    "copy": lambda t, x: t.copy_(x[0, 0]),
    "mask": lambda t, x: t.masked_fill_(t > 1, 0.5),
}

JOINS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "joined": lambda t, x: torch.cat([t, t, t[:0]]),
    "stacked": lambda t, x: torch.stack([x[2], x[0], x.view(-1)[1:5]]),
    "stacked views": lambda t, x: torch.stack([t, t], -1),
    "stacked out": lambda t, x: torch.stack([t, t], out=x.new_empty((2, *t.shape), dtype=t.dtype)),
    "dtypes": lambda t, x: torch.cat([t, t.double()]),
    "each": lambda t, x: torch._foreach_add([t, x[0]], 2),
    "each by each": lambda t, x: torch._foreach_mul([t, x[1:]], [2, 3.0]),
    "sum of products": lambda t, x: torch.einsum("ij,kj->ik", x, x[1:]),
}


def _outcome(run: Callable[[], Any]) -> tuple[Any, str]:
    try:
        result = run()
    except (RuntimeError, IndexError, TypeError, NotImplementedError) as error:
        return None, type(error).__name__
    return result, ""


def _agree(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
    torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)


@pytest.mark.sampled(35)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors")
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("target", TARGETS)
def test_writes_are_those_of_the_cpu_every_time(target: str, write: str) -> None:
    ours, theirs = torch.arange(12.0, device="jax").view(3, 4), torch.arange(12.0).view(3, 4)
    for _ in range(REPEATED):
        x, y = (TARGETS[target](t) for t in (ours, theirs))
        got, error = _outcome(partial(WRITES[write], x, ours))
        wanted, expected = _outcome(partial(WRITES[write], y, theirs))
        assert error == expected
        _agree(ours, theirs)
        assert ours._version == theirs._version
        if wanted is not None:
            assert got is x
            _agree(got, wanted)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("target", TARGETS)
def test_lists_of_tensors_give_what_the_cpu_gives_every_time(target: str, join: str) -> None:
    ours, theirs = torch.arange(12.0, device="jax").view(3, 4), torch.arange(12.0).view(3, 4)
    for _ in range(REPEATED):
        x, y = (TARGETS[target](t) for t in (ours, theirs))
        got, error = _outcome(partial(JOINS[join], x, ours))
        wanted, expected = _outcome(partial(JOINS[join], y, theirs))
        assert error == expected
        for one, other in zip(*(r if isinstance(r, list | tuple) else [r] for r in (got, wanted))):
            if other is not None:
                _agree(one, other)
        ours += 1
        theirs += 1


def test_shapes_that_depend_on_values_are_new_every_time() -> None:
    for count in (3, 3, 3, 3, 1, 5, 0, 3, 2):
        mask = torch.arange(6) < count
        ours = mask.to("jax")
        values = torch.arange(6.0, device="jax")
        assert values[ours].tolist() == list(range(count))
        assert torch.masked_select(values, ours).shape == (count,)
        assert ours.nonzero().shape == (count, 1)
        assert [t.shape for t in torch.unique(values.clamp(max=count), return_counts=True)] == [
            (count + 1,),
            (count + 1,),
        ]
        combined = torch.combinations(values[ours], 2)
        assert combined.shape == (count * (count - 1) // 2, 2)


@pytest.fixture
def flushing():
    """PyTorch's CPU takes subnormal numbers for zeros, as XLA's does."""
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("flushing")
@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors")
@example([("bits", "clamp"), ("whole", "add itself"), ("bits", "negate")])
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.sampled_from([*TARGETS]), st.sampled_from([*WRITES])), max_size=12))
def test_any_sequence_of_writes_is_that_of_the_cpu(steps: list[tuple[str, str]]) -> None:
    # `out=` may resize, which invalidates the views.
    steps = [step for step in steps if "out" not in step[1]]
    ours, theirs = torch.arange(12.0, device="jax").view(3, 4), torch.arange(12.0).view(3, 4)
    for target, write in steps:
        x, y = (TARGETS[target](t) for t in (ours, theirs))
        _, error = _outcome(partial(WRITES[write], x, ours))
        _, expected = _outcome(partial(WRITES[write], y, theirs))
        assert error == expected, (target, write)
        _agree(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.complex64, torch.bool])
@pytest.mark.parametrize("other", [torch.int32, torch.float32, torch.complex64])
def test_results_are_cast_or_refused_as_on_the_cpu(dtype: torch.dtype, other: torch.dtype) -> None:
    ours, theirs = torch.ones(3, dtype=dtype, device="jax"), torch.ones(3, dtype=dtype)
    for _ in range(REPEATED):
        for write in (torch.Tensor.add_, torch.Tensor.mul_, lambda t, y: torch.add(y, y, out=t)):
            _, error = _outcome(
                lambda write=write: write(ours, torch.ones(3, dtype=other).to("jax"))
            )
            _, expected = _outcome(lambda write=write: write(theirs, torch.ones(3, dtype=other)))
            assert error == expected
            _agree(ours, theirs)


def _served(name: str, call: Callable[[], Any]) -> tuple[int, int]:
    """How many kinds of calls were admitted by the calls of a program, and Python calls of one."""
    before = fast_path.ADMITTED[name]
    for _ in range(REPEATED):
        call()
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(previous)
    return fast_path.ADMITTED[name] - before, count


OUT = torch.empty(5, device="jax")
SQUARE, PRODUCT = torch.eye(3, device="jax"), torch.empty(3, 3, device="jax")
FAST: dict[str, tuple[str, Callable[[torch.Tensor, torch.Tensor], Any], int]] = {
    "functional": ("aten::add.Tensor", lambda x, y: x + y, 7),
    "named": ("aten::add.Tensor", lambda x, y: torch.add(x, y, alpha=3), 9),
    "in place": ("aten::add_.Tensor", lambda x, y: x.add_(y), 9),
    "by a number": ("aten::mul_.Tensor", lambda x, y: x.mul_(1.0), 10),
    "what does not look": ("aten::zero_", lambda x, y: x.zero_(), 9),
    "one tensor": ("aten::cos", lambda x, y: x.cos(), 4),
    "joined": ("aten::cat", lambda x, y: torch.cat([x, y]), 8),
    "product out": ("aten::mm.out", lambda x, y: torch.mm(SQUARE, SQUARE, out=PRODUCT), 40),
    "out": ("aten::mul.out", lambda x, y: torch.mul(x, y, out=y), 10),
    "reduction out": (
        "aten::sum.IntList_out",
        lambda x, y: torch.sum(x, 1, out=y.new_empty(5)),
        60,
    ),
}


@pytest.mark.parametrize("kind", FAST)
def test_calls_made_before_take_few_steps(kind: str) -> None:
    name, call, most = FAST[kind]
    x, y = torch.rand(5, 7, device="jax"), torch.rand(5, 7, device="jax")
    admitted, steps = _served(name, lambda: call(x, y))
    assert admitted == 1
    assert steps <= most


def test_writes_to_views_take_one_executable() -> None:
    x = torch.rand(5, 7, device="jax")
    row = x[2]
    admitted, steps = _served("aten::add_.Tensor", lambda: row.add_(1.0))
    assert admitted == 1
    assert steps <= 30
    executables = fast_path.ADMITTED["aten::add_.Tensor"]
    for at in range(5):
        x[at].add_(1.0)
    assert fast_path.ADMITTED["aten::add_.Tensor"] == executables, "rows share an executable"


def test_reductions_are_written_out_and_resize() -> None:
    x, out = torch.rand(3, 4), torch.empty(0, device="jax")
    for step in range(REPEATED):
        assert torch.sum(x.to("jax") + step, 1, out=out) is out
        _agree(out, torch.sum(x + step, 1))
        assert torch.sum(x.to("jax"), 1, keepdim=True, out=out.new_empty(3, 1)).shape == (3, 1)


def test_results_are_written_out_to_views() -> None:
    theirs, x = torch.zeros(4, 6), torch.rand(4, 6)
    ours = theirs.to("jax")
    for step in range(REPEATED):
        for base in (ours, theirs):
            y = x.to(base.device) + step
            torch.sum(y, 0, out=base[step % 4])
            torch.mul(y[:, 0], 2, out=base.t()[1])
            torch.add(y[:, ::2], 1, out=base[:, ::2])
            torch.cumsum(y[0, :4], 0, out=base.view(-1)[5:9])
        _agree(ours, theirs)


def test_a_write_is_seen_through_every_alias() -> None:
    x = torch.zeros(2, 3, device="jax")
    row, flat, same = x[1], x.view(-1), x.detach()
    for step in range(1, REPEATED):
        row.add_(1)
        torch.add(x, 1, out=x)
        assert flat.cpu().tolist() == [step] * 3 + [2 * step] * 3
        assert torch.equal(same.cpu(), x.cpu())


def test_arrays_taken_before_a_write_keep_their_values() -> None:
    x = torch.zeros(3, device="jax")
    for step in range(REPEATED):
        array = calque.to_jax(x)
        x.add_(1)
        assert array.tolist() == [step] * 3


def test_autograd_notices_a_write_to_what_it_saved() -> None:
    for _ in range(REPEATED):
        x = torch.ones(3, device="jax", requires_grad=True)
        y = x.exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            x.add_(1)
        with torch.no_grad():
            assert x.add_(1).tolist() == [2.0] * 3


def test_gradients_go_through_writes() -> None:
    for _ in range(REPEATED):
        x = torch.arange(3.0).to("jax").requires_grad_()
        y = (x * 1).mul_(x).add_(x, alpha=2)
        y[1].mul_(10)
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2.0, 40.0, 6.0]


def test_products_heed_the_precision_asked_for() -> None:
    x, out = torch.rand(4, 4), torch.empty(4, 4, device="jax")
    for precision in ("highest", "float32", "highest"):
        with jax.default_matmul_precision(precision):
            for _ in range(REPEATED):
                torch.mm(x.to("jax"), x.to("jax"), out=out)
                _agree(out, x @ x)
                _agree(out.clone().addmm_(out, out), out.cpu() + out.cpu() @ out.cpu())


def test_zeros_of_either_sign_are_two_numbers() -> None:
    x = torch.tensor([float("nan")], device="jax")
    for step in range(3 * REPEATED):
        number = (0.0, -0.0)[step % 2]
        assert str(torch.nan_to_num(x, number).item()) == str(number)
        assert str(x.clone().nan_to_num_(nan=number).item()) == str(number)
