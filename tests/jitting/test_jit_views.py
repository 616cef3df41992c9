"""Views, aliases and in-place writes across the border of a jitted function."""

import copy

import pytest
import torch

import calque


def arange(n):
    return torch.arange(float(n), device="jax")


def test_minibatches_by_slicing_are_one_program():
    data = arange(20).reshape(10, 2)
    run = calque.jit(lambda x: x.sum(1))
    for i in range(0, 10, 2):
        assert torch.equal(run(data[i : i + 2]), data[i : i + 2].sum(1))
    assert len(run.history) == 1


def test_writes_to_an_argument_reach_the_caller():
    @calque.jit
    def run(x):
        x.add_(1)
        x[0] = 7

    whole = arange(4)
    run(whole)
    assert whole.tolist() == [7, 2, 3, 4]
    base = arange(8)
    view = base[2:6]
    for _ in range(2):
        run(view)
    assert base.tolist() == [0, 1, 7, 5, 6, 7, 6, 7]
    column = arange(8).reshape(4, 2)
    run(column[:, 1])
    assert column[:, 1].tolist() == [7, 4, 6, 8]
    assert column[:, 0].tolist() == [0, 2, 4, 6]
    run(whole.view(2, 2)[0].expand(2))
    assert len(run.history) <= 3


def test_writes_advance_versions():
    state, x = arange(2), arange(2)
    run = calque.jit(lambda x: (state.add_(x), x.mul_(2), None)[2])
    for _ in range(2):
        before = state._version, x._version
        run(x)
        assert state._version > before[0]
        assert x._version > before[1]


def test_autograd_sees_that_a_saved_tensor_was_overwritten():
    state = arange(2)
    w = torch.ones(2, device="jax", requires_grad=True)
    run = calque.jit(lambda: (state.add_(1), None)[1])
    run()
    loss = (w * state).sum()
    run()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_results_that_are_arguments_or_state():
    state = torch.nn.Parameter(arange(2))
    run = calque.jit(lambda x, y: (x, state, y, x[1:], state.detach(), state.view(2, 1).detach()))
    for _ in range(2):
        x, y = arange(3), arange(3)
        a, b, c, tail, flat, column = run(x, y)
        assert a is x
        assert b is state
        assert c is y
        tail.add_(5)
        assert x.tolist() == [0, 6, 7]
        before = state.tolist()
        flat.add_(1)
        column.add_(1)
        assert state.tolist() == [before[0] + 2, before[1] + 2]


def test_results_that_share_memory_with_each_other():
    @calque.jit
    def run(x):
        y = x * 2
        return y, y[1:], y.view(2, 2), y, y.t() if y.ndim == 2 else y.flip(0)

    for _ in range(2):
        y, tail, square, again, flipped = run(arange(4))
        assert again.data_ptr() == y.data_ptr()
        y[3] = 100
        assert tail[-1].item() == 100
        assert square[1, 1].item() == 100
        assert again[3].item() == 100
        assert flipped.tolist() == [6, 4, 2, 0]


def test_the_same_tensor_twice_and_overlapping_arguments():
    def f(a, b):
        a.add_(1)
        return a + b

    run = calque.jit(f)
    x = arange(3)
    assert run(x, x).tolist() == [2, 4, 6]
    assert x.tolist() == [1, 2, 3]
    y = arange(3)
    assert run(x, y).tolist() == [2, 4, 6]
    assert x.tolist() == [2, 3, 4]
    assert run(x, x).tolist() == [6, 8, 10]
    base, reference = arange(4), torch.arange(4.0)
    assert run(base[:3], base[1:]).tolist() == f(reference[:3], reference[1:]).tolist()
    assert base.tolist() == reference.tolist()
    assert run(base[:2], base[2:]).tolist() == f(reference[:2], reference[2:]).tolist()
    assert base.tolist() == reference.tolist()
    whole, reference = arange(4), torch.arange(4.0)
    assert run(whole[:], whole).tolist() == f(reference[:], reference).tolist()
    assert whole.tolist() == reference.tolist()


def test_an_argument_that_is_also_state():
    state = arange(3)

    @calque.jit
    def run(x):
        state.add_(1)
        return x * 1

    assert run(state).tolist() == [1, 2, 3]
    assert run(arange(3)).tolist() == [0, 1, 2]
    assert run(state).tolist() == [3, 4, 5]
    assert run(state[:]).tolist() == [4, 5, 6]
    assert run(state[1:]).tolist() == [6, 7]
    assert run(arange(2)).tolist() == [0, 1]
    assert run(state[1:]).tolist() == [8, 9]


def test_state_behind_views():
    base = arange(6)
    view = base[1:4]
    grid = base.as_strided((2, 2), (2, 1), 1)

    @calque.jit
    def run(x):
        view.add_(x)
        grid.mul_(2)
        return base.sum()

    reference = torch.arange(6.0)
    rview, rgrid = reference[1:4], reference.as_strided((2, 2), (2, 1), 1)
    for _ in range(3):
        rview.add_(1)
        rgrid.mul_(2)
        assert run(torch.ones(3, device="jax")).item() == reference.sum().item()
        assert base.tolist() == reference.tolist()


def test_a_state_that_becomes_viewed_later():
    state = arange(4)
    run = calque.jit(lambda: state.add_(1).sum())
    run()
    tail = state[2:]
    assert run().item() == 14
    assert tail.tolist() == [4, 5]


def test_transposed_arguments_and_results():
    run = calque.jit(lambda x: (x + 1, x.t(), x.contiguous()))
    x = arange(6).reshape(2, 3)
    for one in (x, x.t(), x.t().clone(memory_format=torch.preserve_format), x.t().contiguous()):
        for _ in range(2):
            more, turned, dense = run(one)
            assert torch.equal(more, one + 1)
            assert torch.equal(turned, one.t())
            assert torch.equal(dense, one)
            assert more.stride() == (one + 1).stride()


def test_held_arrays_are_never_deleted_or_changed():
    state = arange(4)
    held = calque.to_jax(state)
    clone, deep = state.clone(), copy.deepcopy(state)
    exported = torch.from_dlpack(state)
    run = calque.jit(lambda: (state.add_(1), None)[1])
    for _ in range(3):
        run()
    assert held.tolist() == [0, 1, 2, 3]
    assert clone.tolist() == [0, 1, 2, 3]
    assert exported.tolist() == [0, 1, 2, 3]
    assert deep.tolist() == [0, 1, 2, 3]
    held_now = calque.to_jax(state)
    run()
    assert held_now.tolist() == [3, 4, 5, 6]
    assert state.tolist() == [4, 5, 6, 7]


def test_state_is_not_held_twice():
    state = arange(4)
    run = calque.jit(lambda: (state.add_(1), None)[1])
    run()
    array = calque.to_jax(state)
    pointer = array.unsafe_buffer_pointer()
    del array
    run()
    assert calque.to_jax(state).unsafe_buffer_pointer() == pointer
    assert run.explain().programs[0]["donated"] == 1


def test_two_state_tensors_over_one_array():
    a = arange(3)
    b = a.clone()
    run = calque.jit(lambda: (a.add_(1), b.mul_(2), None)[2])
    for _ in range(2):
        run()
    assert a.tolist() == [2, 3, 4]
    assert b.tolist() == [0, 4, 8]


def test_channels_last_state_and_arguments():
    x = torch.randn(2, 3, 4, 4).to("jax").to(memory_format=torch.channels_last)
    run = calque.jit(lambda x: x * 2)
    for _ in range(2):
        assert torch.equal(run(x), x * 2)
        assert run(x).stride() == (x * 2).stride()


def _written_result(device, jit, view, given):
    """What a write with a gradient into a returned view does to what it is a view of."""
    rows = []
    state = torch.zeros(6, device=device)
    run = jit(lambda x: view(x) if given else view(state.copy_(x)))
    for call in range(4):
        memory = torch.arange(8.0).to(device) + call
        whole = memory[1:7] if given else state.detach_()
        weight = torch.tensor([2.0]).to(device).requires_grad_()
        run(whole if given else memory[1:7]).mul_(weight)
        rows.append((whole.requires_grad, whole.tolist()))
        if whole.requires_grad:
            (whole * torch.arange(6.0).to(device)).sum().backward()
            assert weight.grad is not None
            rows.append(weight.grad.tolist())
    return rows


@pytest.mark.parametrize("given", [True, False], ids=["argument", "state"])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[1:4],
        lambda x: x.add_(1).view(2, 3).t(),
        lambda x: x[:2].detach(),
        lambda x: x.detach()[:2],
    ],
)
def test_a_write_with_a_gradient_into_a_returned_view_reaches_its_base(view, given):
    expected = _written_result("cpu", lambda f: f, view, given)
    assert _written_result("jax", calque.jit, view, given) == expected


def _two_of_one(x, weight):
    made = x * 2
    return made, made[0]


def _two_views(x, weight):
    made = x * 2
    return made[0], made.t()


def _with_a_detached_one(x, weight):
    made = x * 2
    return made, made.detach()[0]


def _with_graphs(x, weight):
    made = x * weight
    return made, made[0]


def _without_gradients(x, weight):
    made = x * weight
    with torch.no_grad():
        return made, made[0]


def _unbound(x, weight):
    return (x * 2).unbind(0)


def _unbound_with_graph(x, weight):
    return (x * weight).unbind(0)


def _unbound_argument(x, weight):
    return x.unbind(0)


def _after_a_write(dev, wrap, fn, index):
    """What is told after a write with a gradient into one of two results that share memory."""
    x, weight = torch.ones(2, 3).to(dev), torch.tensor([2.0, 3.0, 4.0]).to(dev).requires_grad_()
    rows, fn = [], wrap(fn)
    for _ in range(3):
        made = fn(x.clone(), weight)
        rows.append([t._is_view() for t in made])
        try:
            made[index].mul_(weight[0])
            for tensor in made:
                rows.append(tensor.tolist())
                if tensor.requires_grad:
                    (found,) = torch.autograd.grad(tensor.sum(), weight, retain_graph=True)
                    rows.append(found.tolist())
        except RuntimeError as error:
            rows.append(str(error).split("This view")[-1].split("Given")[0].split(" is a view")[-1])
    return rows


_SHARING = [
    *(_two_of_one, _two_views, _with_a_detached_one, _with_graphs, _without_gradients),
    *(_unbound, _unbound_with_graph, _unbound_argument),
]


@pytest.mark.parametrize(
    ("fn", "index"),
    [(fn, i) for fn in _SHARING for i in (0, 1) if (fn, i) != (_without_gradients, 0)],
)
def test_a_write_with_a_gradient_into_a_result_reaches_others_over_its_memory(fn, index):
    expected = _after_a_write("cpu", lambda f: f, fn, index)
    assert _after_a_write("jax", calque.jit, fn, index) == expected


@pytest.mark.parametrize("fn", [_two_of_one, _with_a_detached_one, _without_gradients])
def test_a_write_into_a_result_is_counted_by_others_over_its_memory(fn):
    weight = torch.ones(3, device="jax", requires_grad=True)
    first, second = calque.jit(fn)(torch.ones(2, 3, device="jax"), weight)
    lost = (first * weight).sum()  # its backward needs the overwritten values
    with torch.no_grad():
        second.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        lost.backward()


def test_a_view_that_is_a_result_has_the_base_that_is_a_result():
    first, second = calque.jit(_two_of_one)(torch.ones(2, 3, device="jax"), None)
    assert second._base is first


def test_a_view_made_under_no_grad_may_be_followed_by_writes_to_its_base():
    def steps(device):
        weight = torch.nn.Parameter(torch.arange(8.0).reshape(4, 2).to(device))

        def step():
            with torch.no_grad():
                row = weight[0]
                row.fill_(1)
                row.add_(1)
                weight.mul_(2)
            weight.square().sum().backward()

        run = calque.jit(step) if device == "jax" else step
        for _ in range(2):
            run()
        return [weight.tolist(), weight.grad.tolist()]

    assert steps("jax") == steps("cpu")


class Halves:
    """Two variables, which each call replaces."""

    def __init__(self, device):
        self.h, self.c = torch.zeros(2, device=device), torch.ones(2, device=device)
        self.whole = None

    def parts(self):
        return [self.h, self.c, *([] if self.whole is None else [self.whole])]


def _chunks(own, x):
    own.h, own.c = (x + torch.cat([own.h, own.c])).chunk(2)
    return own.h * 2


def _written_chunks(own, x):
    own.h.mul_(2)
    own.c.add_(1)
    own.h, own.c = (x + own.h.repeat(2)).chunk(2)
    return own.c.clone()


def _overlapping(own, x):
    own.h.add_(1)
    sum_ = own.h * own.c
    y = x * 2 + sum_.sum()
    own.h, own.c = y[:2], y[1:3]
    return sum_


def _with_the_whole(own, x):
    if own.whole is not None:
        own.whole.mul_(0.5)
    sum_ = own.h + own.c
    own.whole = x + 1
    own.h, own.c = own.whole[:2], own.whole[2:]
    return sum_


def _exchanged(own, x):
    own.h, own.c = own.c, own.h
    own.h = (x[:2] + own.h).view(2)
    return own.c + own.h


def _apart(own):
    own.h = own.h.clone()


def _two_of_another(own):
    own.c, own.h = torch.arange(4.0, device=own.h.device).chunk(2)


def _overlap(own):
    base = torch.arange(3.0, device=own.h.device)
    own.h, own.c = base[:2], base[1:]


@pytest.mark.parametrize("change", [None, _apart, _two_of_another, _overlap])
@pytest.mark.parametrize(
    "fn", [_chunks, _written_chunks, _overlapping, _with_the_whole, _exchanged]
)
def test_variables_that_hold_parts_of_one_new_tensor_are_one_program(fn, change):
    ours, theirs = Halves("jax"), Halves("cpu")
    step = calque.jit(lambda x: fn(ours, x))
    for call in range(8):
        if change is not None and call in (4, 6):
            change(ours)
            change(theirs)
        x = torch.arange(4.0) + call
        torch.testing.assert_close(step(x.to("jax")).cpu(), fn(theirs, x))
        for mine, expected in zip(ours.parts(), theirs.parts(), strict=True):
            torch.testing.assert_close(mine.cpu(), expected)
            assert mine.storage_offset() == expected.storage_offset()
    assert len(step.history) <= (3 if change is None else 6)


def test_a_variable_may_hold_a_tensor_before_and_a_tuple_after():
    own = Halves("jax")

    @calque.jit
    def step(x):
        own.h = (x * 2, x + 1) if own.whole is None else x * 3

    x = torch.ones(2, device="jax")
    for whole in (None, 1, None, 1, 1, None, None):
        own.whole = whole
        step(x)
        assert isinstance(own.h, tuple) == (whole is None)
    assert own.h[1].tolist() == [2, 2]
    assert len(step.history) <= 6
