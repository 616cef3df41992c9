"""Programs that must not be used when something they were made for has changed."""

import copy
import pickle
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import calque


def ones(*shape):
    return torch.ones(*shape, device="jax")


FACTOR = 2


def helper(x):
    return x * FACTOR


def twice(x):
    return helper(helper(x))


def test_a_global_of_a_helper():
    global FACTOR
    run = calque.jit(lambda x: twice(x))
    assert run(ones(1)).item() == 4
    FACTOR = 3
    try:
        assert run(ones(1)).item() == 9
    finally:
        FACTOR = 2


def test_a_helper_that_is_redefined():
    def inner(x):
        return x + 1

    run = calque.jit(lambda x: inner(x))
    assert run(ones(1)).item() == 2

    def inner(x):  # noqa: F811
        return x + 2

    assert run(ones(1)).item() == 3


@dataclass(slots=True)
class Slotted:
    scale: float
    w: torch.Tensor


class Classy:
    scale = 2
    table = None


def test_slots_class_attributes_and_dicts():
    slotted, config = Slotted(2.0, ones(1)), {"add": 1, "deep": {"more": [1]}}
    run = calque.jit(
        lambda x: (
            x * slotted.scale * Classy.scale * slotted.w + config["add"] + config["deep"]["more"][0]
        )
    )
    assert run(ones(1)).item() == 6
    slotted.scale = 3.0
    assert run(ones(1)).item() == 8
    slotted.w = ones(1) * 2
    assert run(ones(1)).item() == 14
    config["add"] = 2
    assert run(ones(1)).item() == 15
    config["deep"]["more"][0] = 5
    assert run(ones(1)).item() == 19
    Classy.scale = 1
    try:
        assert run(ones(1)).item() == 13
    finally:
        Classy.scale = 2


def test_attributes_deep_in_plain_objects():
    class Node:
        def __init__(self, inner):
            self.inner = inner

    leaf = Node(ones(1))
    root = Node(Node(Node(Node(Node(leaf)))))
    run = calque.jit(lambda x: x * root.inner.inner.inner.inner.inner.inner)
    assert run(ones(1)).item() == 1
    leaf.inner = ones(1) * 5
    assert run(ones(1)).item() == 5


def test_a_model_converted_after_the_first_call():
    model = nn.Linear(2, 2).to("jax")
    run = calque.jit(model)
    assert run(ones(1, 2)).dtype == torch.float32
    model.double()
    assert run(ones(1, 2).double()).dtype == torch.float64
    model.float()
    torch.testing.assert_close(run(ones(1, 2)), model(ones(1, 2)))
    model.load_state_dict(nn.Linear(2, 2).state_dict())
    torch.testing.assert_close(run(ones(1, 2)), model(ones(1, 2)))
    model.load_state_dict(nn.Linear(2, 2).to("jax").state_dict(), assign=True)
    torch.testing.assert_close(run(ones(1, 2)), model(ones(1, 2)))


def test_parametrized_and_tied_weights():
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    reference[1].weight = reference[0].weight
    reference[0] = nn.utils.parametrizations.weight_norm(reference[0])
    model = copy.deepcopy(reference).to("jax")
    step = calque.jit(lambda x: model(x).pow(2).sum().backward())
    step(ones(2, 3))
    reference(torch.ones(2, 3)).pow(2).sum().backward()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-5)


def test_spectral_norm_follows_eager():
    torch.manual_seed(0)
    reference = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    model = copy.deepcopy(reference).to("jax")
    run = calque.jit(model)
    with torch.no_grad():
        for _ in range(3):
            want = reference(torch.ones(2, 3))
            torch.testing.assert_close(run(ones(2, 3)).cpu(), want, rtol=1e-4, atol=1e-5)
    assert len(run.history) == 1


def test_calls_within_one_autocast_context_see_new_weights():
    model = nn.Linear(2, 2, bias=False).to("jax")
    run = calque.jit(model)
    with torch.autocast("jax", dtype=torch.bfloat16):
        run(ones(1, 2))
        with torch.no_grad():
            model.weight.fill_(3.0)
        assert run(ones(1, 2)).tolist() == [[6, 6]]
        assert run(ones(1, 2)).tolist() == [[6, 6]]
        assert len(run.history) == 1
        assert torch.isfinite(model(ones(1, 2))).all().item()


def test_state_made_in_inference_mode():
    with torch.inference_mode():
        state = ones(2)
        run = calque.jit(lambda: (state.add_(1), None)[1])
        run()
        run()
    assert state.tolist() == [3, 3]


def test_copies_of_jitted_functions():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.fast = calque.jit(self.layer)

        def forward(self, x):
            return self.fast(x)

    net = Net().to("jax")
    net(ones(1, 2))
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.layer.weight.fill_(0)
        other.layer.bias.fill_(0)
    assert other(ones(1, 2)).tolist() == [[0, 0]]
    assert net(ones(1, 2)).tolist() != [[0, 0]]
    assert pickle.loads(pickle.dumps(calque.jit(twice)))(ones(1)).item() == 4


def test_hooks_and_forward_methods_that_are_replaced():
    model = nn.Linear(2, 2, bias=False).to("jax")
    run = calque.jit(lambda x: model(x))
    first = run(ones(1, 2))
    handle = model.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    torch.testing.assert_close(run(ones(1, 2)), first * 2)
    handle.remove()
    torch.testing.assert_close(run(ones(1, 2)), first)
    model.forward = lambda x: x * 7
    assert run(ones(1, 2)).tolist() == [[7, 7]]


def test_a_parameter_group_added_and_a_setting_changed():
    a, b = ones(1).requires_grad_(), ones(1).requires_grad_()
    optimizer = torch.optim.SGD([a], lr=1.0)

    @calque.jit
    def step():
        (a + b).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        b.grad = None

    step()
    optimizer.add_param_group({"params": [b], "lr": 0.5})
    step()
    assert (a.item(), b.item()) == (-1, 0.5)
    optimizer.param_groups[0]["maximize"] = True
    step()
    assert (a.item(), b.item()) == (0, 0)


@pytest.mark.parametrize("lr", [0.5, 0.25])
def test_a_learning_rate_that_is_a_tensor(lr):
    w = ones(1).requires_grad_()
    rate = torch.tensor(lr, device="jax")
    optimizer = torch.optim.SGD([w], lr=rate)
    step = calque.jit(
        lambda: (w.sum().backward(), optimizer.step(), optimizer.zero_grad(), None)[3]
    )
    step()
    assert w.item() == 1 - lr
    rate.fill_(1.0)
    step()
    assert w.item() == -lr
    optimizer.param_groups[0]["lr"] = torch.tensor(2.0, device="jax")
    step()
    assert w.item() == -lr - 2


def test_swapping_two_buffers_by_name():
    class Double:
        def __init__(self):
            self.front, self.back = ones(2), ones(2) * 2

        @calque.jit
        def flip(self):
            self.front, self.back = self.back + 1, self.front
            return self.front.sum()

    buffers = Double()
    front, back = 1, 2
    for _ in range(5):
        front, back = back + 1, front
        assert buffers.flip().item() == 2 * front
        assert buffers.back.tolist() == [back] * 2


def test_a_failed_run_leaves_state_whole(monkeypatch):
    total = ones(2)
    run = calque.jit(lambda x: (total.add_(x), x * 2)[1])
    run(ones(2))
    (program,) = next(iter(run.programs.values()))

    def fail(*arrays):
        raise MemoryError("no memory")

    working = program.execution._start
    program.execution._start = fail
    with pytest.raises(MemoryError):
        run(ones(2))
    assert total.tolist() == [2, 2]
    program.execution._start = working
    run(ones(2))
    assert total.tolist() == [3, 3]


def test_state_whose_geometry_changes_in_place():
    state = torch.arange(4.0, device="jax").reshape(2, 2).clone()
    run = calque.jit(lambda: state * 2)
    assert run().tolist() == [[0, 2], [4, 6]]
    state.t_()
    assert run().tolist() == [[0, 4], [2, 6]]
    state.resize_(4)
    assert run().shape == (4,)
    state.resize_(6)
    assert run().shape == (6,)
    assert len(run.history) == 4
    run()
    assert len(run.history) == 4


def test_gradients_of_an_argument_that_were_put_there_by_others():
    run = calque.jit(lambda x: x.grad * 2)
    x = ones(2).requires_grad_()
    for value in (1, 3):
        x.grad = ones(2) * value
        assert run(x).tolist() == [2 * value] * 2
    assert len(run.history) == 1


def test_results_that_are_views_of_views():
    base = torch.arange(10.0, device="jax")
    run = calque.jit(lambda x: (x[1:], x.view(2, 2)))
    for offset in (0, 2, 4):
        tail, square = run(base[offset : offset + 4])
        tail.zero_()
        square[0, 0] = 9
        assert base[offset : offset + 4].tolist() == [9, 0, 0, 0]
        base.copy_(torch.arange(10.0).to("jax"))
    assert len(run.history) == 1
    column = torch.arange(10.0, device="jax").view(5, 2)[:, 1]
    calque.jit(lambda x: x[1:])(column).zero_()
    assert column.tolist() == [1, 0, 0, 0, 0]


def test_lists_of_states_that_are_replaced():
    states = [ones(1), ones(1)]

    @calque.jit
    def run(x):
        states[0] = states[0] + x
        states[1] = states[0] * 2
        return states[1] * 1

    assert [run(ones(1)).item() for _ in range(4)] == [4, 6, 8, 10]
    assert len(run.history) <= 2


def test_a_cache_that_grows():
    cache = [ones(0, 2)]

    @calque.jit
    def run(x):
        cache[0] = torch.cat([cache[0], x])
        return cache[0].sum()

    assert [run(ones(1, 2)).item() for _ in range(4)] == [2, 4, 6, 8]


def test_eager_and_jitted_steps_in_turn():
    def train(device, wrap):
        torch.manual_seed(0)
        model = nn.Linear(2, 1).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

        def step():
            model(torch.ones(1, 2, device=device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        jitted = wrap(step)
        for i in range(6):
            (jitted if i % 2 else step)()
        return [p.detach().cpu() for p in model.parameters()]

    for got, want in zip(train("jax", calque.jit), train("cpu", lambda f: f), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
