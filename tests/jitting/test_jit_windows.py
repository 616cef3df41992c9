"""Views as arguments of a jitted function: where they lie, and what lies around them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import calque

VIEWS = {
    "a slice": lambda base: base[4:10],
    "columns": lambda base: base.view(4, 6)[:, 1:3],
    "a step": lambda base: base[2::3],
    "repeated": lambda base: base[3:5, None].expand(2, 3),
    "overlapping": lambda base: base.as_strided((3, 4), (2, 1), 5),
    "a view of a view": lambda base: base[2:].view(2, 11)[:, 3:9].t()[1:5],
}


def scattered(x):
    return x.as_strided_scatter(torch.ones(2, device=x.device), (2,), (1,), x.storage_offset() + 1)


def written(write):
    def function(x):
        write(x)
        return x * 1

    return function


QUESTIONS = {
    "as_strided": lambda x: x.as_strided((2, 2), (3, 1), 1),
    "as_strided without an offset": lambda x: x.as_strided((2, 3), (4, 1)),
    "as_strided of a view": lambda x: x[1:].as_strided((2,), (1,), 7) + x[1:].storage_offset(),
    "torch.as_strided": lambda x: torch.as_strided(x, (2,), (2,), storage_offset=20),
    "aten": lambda x: torch.ops.aten.as_strided(x, [2], [1], 0) * 1,
    "as_strided_copy": lambda x: torch.as_strided_copy(x, (2,), (1,), 1),
    "as_strided_scatter": scattered,
    "storage_offset": lambda x: x * x.storage_offset() + x.t().storage_offset(),
    "stride": lambda x: x * x.stride(0) + x.is_contiguous(),
    "set_": lambda x: torch.empty(0, device=x.device).set_(x.untyped_storage(), 3, (2,), (1,)) * 1,
    "storage size": lambda x: x * x.untyped_storage().nbytes(),
    "strides of a result": lambda x: torch.tensor((x + 1).stride()),
    "a write through as_strided": written(lambda x: x.as_strided((2,), (1,), 0).add_(1)),
    "a write behind reshape": written(lambda x: x.reshape(-1).add_(1)),
    "a write behind contiguous": written(lambda x: x.contiguous().add_(1)),
    "a write behind flatten": written(lambda x: x.mT.flatten().add_(1)),
}


def outcome(function, view, device):
    """What a call gives, and the memory afterwards; or that it raises."""
    base = torch.arange(24.0, device=device)
    argument = view(base)
    try:
        result = function(argument)
    except RuntimeError:
        return "refused", base.tolist()
    return result.tolist(), base.tolist(), argument.tolist()


@pytest.mark.sampled(32)
@pytest.mark.filterwarnings("ignore:The use of `x.T` on tensors of dimension other than 2")
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_lies_where_it_does_eagerly(view, question):
    function, view = QUESTIONS[question], VIEWS[view]
    run = calque.jit(function)
    expected = outcome(function, view, "cpu")
    for _ in range(2):
        assert outcome(run, view, "jax") == expected


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_any_view_and_any_reach(data):
    def drawn(axes, repeat):
        size = data.draw(st.lists(st.integers(2, 3), min_size=axes, max_size=axes))
        least = 0 if repeat else 1
        stride = data.draw(st.lists(st.integers(least, 7), min_size=axes, max_size=axes))
        return size, stride, data.draw(st.integers(0, 5))

    first, second = drawn(2, True), drawn(2, True)

    def function(x):
        return x + 1, x.as_strided(*second) * 2, (x * 1).stride()

    run = calque.jit(function)
    for shift in (0, 1):
        size, stride, offset = first
        there = torch.arange(48.0).as_strided(size, stride, offset + shift)
        here = torch.arange(48.0, device="jax").as_strided(size, stride, offset + shift)
        for expected, found in zip(function(there), run(here), strict=True):
            assert (
                found == expected
                if isinstance(expected, tuple)
                else found.tolist() == (expected.tolist())
            )


def test_another_place_is_another_program_only_where_it_matters():
    base = torch.arange(40.0, device="jax")
    asking = calque.jit(lambda x: x * x.storage_offset())
    for i in (0, 4, 8, 4):
        assert asking(base[i : i + 4]).tolist() == (base[i : i + 4] * i).tolist()
    assert len(asking.history) == 3
    assert "another position in its storage" in asking.history[-1]
    other = torch.ones(40, device="jax")
    assert asking(other[8:12]).tolist() == [8.0] * 4
    assert len(asking.history) == 3
    larger = torch.ones(50, device="jax")
    assert asking(larger[8:12]).tolist() == [8.0] * 4
    assert len(asking.history) == 4


@pytest.mark.parametrize(
    "window",
    [
        lambda data, i: data[i : i + 2],
        lambda data, i: data[:, i : i + 2],
        lambda data, i: data[:, i],
        lambda data, i: data[:, :, i],
        lambda data, i: data[1:3, i : i + 3, ::2],
        lambda data, i: data[i, :, :1].expand(6, 4),
    ],
)
def test_a_sliding_window_is_one_program(window):
    data = torch.arange(6.0 * 6 * 4, device="jax").reshape(6, 6, 4)
    on_cpu = data.cpu()

    def function(x):
        x.add_(1) if x.stride(-1) else x[:, :1].add_(1)
        flat = x.flatten(1) if x.ndim > 1 else x.flip(0)
        return flat * 2, x.reshape(-1).sum(), x[1:]

    run = calque.jit(function)
    for i in range(3):
        expected, found = function(window(on_cpu, i)), run(window(data, i))
        assert [t.tolist() for t in found] == [t.tolist() for t in expected]
        assert found[-1].stride() == expected[-1].stride()
        found[-1][..., :1].mul_(2)
        expected[-1][..., :1].mul_(2)
        assert data.tolist() == on_cpu.tolist()
    assert len(run.history) == 1


def test_a_result_that_is_a_view_of_a_strided_argument():
    data = torch.arange(12.0, device="jax").view(3, 4)
    run = calque.jit(lambda x: x[1:])
    for i in range(2):
        tail = run(data[:, i : i + 2])
        tail.add_(100)
        assert data[1:, i : i + 2].tolist() == tail.tolist()
    assert data[0].tolist() == [0, 1, 2, 3]
    assert len(run.history) == 1


def test_gradients_through_a_reach_around_a_window():
    def loss_and_gradient(device, function):
        base = torch.arange(10.0, device=device)
        x = base[2:8].requires_grad_()
        function(x)
        return x.grad.tolist()

    def step(x):
        (x.as_strided((3,), (2,), 3) ** 2 * x.storage_offset()).sum().backward()

    run = calque.jit(step)
    for _ in range(2):
        assert loss_and_gradient("jax", run) == loss_and_gradient("cpu", step)

    def outside(x):
        (run_forward if x.device.type == "jax" else forward)(x).sum().backward()

    def forward(x):
        return x.as_strided((3,), (2,), 3) ** 2 * x.storage_offset()

    run_forward = calque.jit(forward)
    assert loss_and_gradient("jax", outside) == loss_and_gradient("cpu", outside)


class Placed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, x):
        ctx.save_for_backward(x)
        return w * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.storage_offset(), None


BACKWARDS = {
    "tensor": lambda loss, w: (loss.backward(), w.grad)[1],
    "keywords": lambda loss, w: (loss.backward(retain_graph=False, inputs=[w]), w.grad)[1],
    "function": lambda loss, w: (torch.autograd.backward([loss]), w.grad)[1],
    "grad": lambda loss, w: torch.autograd.grad(loss, w)[0],
}


@pytest.mark.parametrize("backward", BACKWARDS.values(), ids=BACKWARDS)
def test_a_backward_of_the_users_asks_where_a_window_lies(backward):
    def step(x):
        w = torch.ones(3, device=x.device, requires_grad=True)
        return backward(Placed.apply(w, x).sum(), w)

    run = calque.jit(step)
    base = torch.arange(10.0, device="jax")
    for i in (2, 5):
        assert run(base[i : i + 3]).tolist() == [i] * 3


def test_a_question_in_a_nested_function_and_in_a_closure():
    base = torch.arange(10.0, device="jax")
    view = base[3:6]
    inner = calque.jit(lambda x: x.as_strided((2,), (1,), 1) + x.storage_offset())
    run = calque.jit(lambda x: inner(x) * inner(view))
    for i in (2, 4):
        assert run(base[i : i + 3]).tolist() == [(1 + i) * 4, (2 + i) * 5]


def test_two_windows_of_one_storage_are_taken_whole_together():
    def function(a, b):
        a.as_strided((2,), (1,), 6).add_(100)
        return a + b

    run = calque.jit(function)
    for i in (0, 1, 0):
        base, on_cpu = torch.arange(10.0, device="jax"), torch.arange(10.0)
        found = run(base[i : i + 3], base[i + 5 : i + 8])
        assert found.tolist() == function(on_cpu[i : i + 3], on_cpu[i + 5 : i + 8]).tolist()
        assert base.tolist() == on_cpu.tolist()
    assert len(run.history) == 2


def test_a_function_that_catches_everything_does_not_hide_its_question():
    def function(x):
        try:
            return x * x.storage_offset()
        except BaseException:
            return x * -1

    run = calque.jit(function)
    assert run(torch.arange(4.0, device="jax")[2:]).tolist() == [4, 6]


def test_a_reach_out_of_the_storage_raises_as_eagerly():
    run = calque.jit(lambda x: x.as_strided((2,), (1,), 9))
    base = torch.arange(10.0, device="jax")
    with pytest.raises(RuntimeError, match="out of bounds for storage of size 40"):
        run(base[2:4])
    assert base.tolist() == list(range(10))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.t_(),
        lambda x: x.unsqueeze_(0),
        lambda x: x.resize_(2),
        lambda x: x.as_strided_((2,), (1,), 0),
    ],
)
def test_a_geometry_that_changes_in_place_is_refused(change):
    state = torch.arange(6.0, device="jax").view(2, 3)
    for run in (calque.jit(lambda x: change(x) * 1), calque.jit(lambda x: change(state) * x.sum())):
        x = torch.arange(6.0, device="jax").view(2, 3)
        with pytest.raises(calque.TraceError, match=r"test_jit_windows.*changes the geometry"):
            run(x)
        for tensor in (x, state):
            assert (tensor.shape, tensor.stride()) == ((2, 3), (3, 1))
            assert tensor.flatten().tolist() == list(range(6))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("shape", [(6,), (2, 2), (3, 2)])
def test_an_out_argument_that_would_be_resized_is_refused(shape):
    state = torch.zeros(shape, device="jax")
    for run in (
        calque.jit(lambda x, out: torch.add(x, 1, out=out)),
        calque.jit(lambda x, out: torch.add(x, 1, out=state) + out.sum()),
    ):
        out = torch.zeros(shape, device="jax")
        with pytest.raises(calque.TraceError, match=r"test_jit_windows.*(is resized|geometry)"):
            run(torch.ones(2, 3, device="jax"), out)
        for tensor in (out, state):
            assert tensor.shape == shape
            assert not tensor.any()


def test_a_geometry_that_changes_in_place_is_fine_on_what_the_function_made():
    run = calque.jit(lambda x: (x * 1).t_().unsqueeze_(0) + x.view(2, 3).t_().squeeze_())
    x = torch.arange(6.0, device="jax").view(2, 3)
    assert torch.equal(run(x), (x.t() * 2).unsqueeze(0))
    assert x.shape == (2, 3)


@pytest.mark.parametrize("run", [torch.Tensor.backward, torch.autograd.backward])
@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_the_exception_of_a_hook_arrives_in_a_trace_with_a_window(register, run):
    w = torch.ones(2, 3, device="jax", requires_grad=True)

    def raising(*_):
        raise LookupError("from the hook")

    getattr(w, register)(raising)
    with pytest.raises(LookupError, match="from the hook"):
        calque.jit(lambda x: run((w * x).sum()))(torch.ones(6, device="jax").view(2, 3))
    assert w.grad is None
