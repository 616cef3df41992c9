"""Calls like the last one take the short way, and any other call the general one."""

import contextlib

import pytest
import torch
from torch import nn

import calque
from calque.jitting.fast_call import FastCall, FastCalls
from calque.jitting.generated.source import MISS


class Taken:
    """Counts the calls that took the short way."""

    def __init__(self, monkeypatch):
        self.count = 0
        like = FastCalls.like

        def counting(function):
            def counted(args):
                result = function(args)
                self.count += result is not MISS
                return result

            return function and counted

        def counted(calls, *given):
            found = like(calls, *given)
            return found and FastCall(*map(counting, found))

        monkeypatch.setattr(FastCalls, "like", counted)


@pytest.fixture
def taken(monkeypatch):
    return Taken(monkeypatch)


def training(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)

    def step(x, y):
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return model, optimizer, step


def batch(device):
    torch.manual_seed(1)
    return torch.randn(5, 3).to(device), torch.randn(5, 2).to(device)


def other_values(model, optimizer, x, y):
    return x * 2, y


def another_batch(model, optimizer, x, y):
    return x[:4].clone(), y[:4].clone()


def transposed(model, optimizer, x, y):
    return x.t().contiguous().t(), y


def views(model, optimizer, x, y):
    both = torch.cat([x, y], 1)
    return both[:, :3], both[:, 3:]


def one_that_requires_grad(model, optimizer, x, y):
    return x.clone().requires_grad_(), y


def one_with_an_attribute(model, optimizer, x, y):
    x = x.clone()
    x.kind = "labelled"
    return x, y


def learning_rate(model, optimizer, x, y):
    optimizer.param_groups[0]["lr"] = 0.3


def weight_decay(model, optimizer, x, y):
    optimizer.param_groups[0]["weight_decay"] = 0.2


def setting(model, optimizer, x, y):
    optimizer.param_groups[0]["nesterov"] = True


def group(model, optimizer, x, y):
    optimizer.param_groups[0] = {**optimizer.param_groups[0], "maximize": True}


def mode(model, optimizer, x, y):
    model.eval()


def mode_of_a_part(model, optimizer, x, y):
    model[1].eval()


def frozen(model, optimizer, x, y):
    model[0].weight.requires_grad_(False)


def other_data(model, optimizer, x, y):
    model[0].weight.data = model[0].weight.data * 3


def written_in_place(model, optimizer, x, y):
    with torch.no_grad():
        model[0].weight.mul_(3)


def other_parameter(model, optimizer, x, y):
    model[0].bias = nn.Parameter(torch.ones_like(model[0].bias))


def gradient(model, optimizer, x, y):
    model[0].weight.grad = torch.ones_like(model[0].weight)


def hook_of_a_tensor(model, optimizer, x, y):
    model[0].weight.register_hook(lambda g: g * 2)


def hook_of_a_module(model, optimizer, x, y):
    model[0].register_forward_hook(lambda m, a, out: out * 2)


def hook_of_the_optimizer(model, optimizer, x, y):
    optimizer.register_step_pre_hook(lambda o, a, k: model.zero_grad())


def method(model, optimizer, x, y):
    model[0].forward = lambda x: nn.functional.linear(x, model[0].weight * 2, model[0].bias)


def momentum(model, optimizer, x, y):
    for state in optimizer.state.values():
        state["momentum_buffer"] = torch.ones_like(state["momentum_buffer"])


CHANGES = [
    *(other_values, another_batch, transposed, views, one_that_requires_grad),
    *(one_with_an_attribute, learning_rate, weight_decay, setting, group, mode, mode_of_a_part),
    *(frozen, other_data, written_in_place, other_parameter, gradient, hook_of_a_tensor),
    *(hook_of_a_module, hook_of_the_optimizer, method, momentum),
]


def losses(device, change, wrap=lambda step: step):
    model, optimizer, step = training(device)
    step, x_and_y = wrap(step), batch(device)
    found = [step(*x_and_y) for _ in range(4)]
    changed = change(model, optimizer, *x_and_y) or x_and_y
    found += [step(*changed), step(*x_and_y), step(*changed), step(*x_and_y)]
    return [loss.item() for loss in found] + [p.tolist() for p in model.parameters()]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_differs_from_the_last_call_is_seen(change, taken):
    expected = losses("cpu", change)
    found = losses("jax", change, calque.jit)
    assert taken.count > 0
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b))


AMBIENT = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("jax", torch.bfloat16),
    "another default device": lambda: torch.device("cpu"),
}


@pytest.mark.parametrize("name", AMBIENT)
def test_a_mode_around_the_call_is_seen(name, taken):
    layer = nn.Linear(3, 2).to("jax")
    run = calque.jit(layer)
    x = torch.ones(4, 3, device="jax")
    for _ in range(4):
        run(x)
    before = taken.count
    assert before > 0
    with AMBIENT[name]():
        found, expected = run(x), layer(x)
        assert found.dtype == expected.dtype
        assert found.requires_grad == expected.requires_grad
        assert found.is_inference() == expected.is_inference()
    run(x), run(x)
    assert taken.count > before


def test_a_default_dtype_is_seen(taken):
    run = calque.jit(lambda x: x + torch.ones(2, device="jax"))
    x = torch.ones(2, device="jax")
    for _ in range(4):
        run(x)
    assert taken.count > 0
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        assert run(x).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.bool])
def test_another_dtype_is_seen(dtype, taken):
    run = calque.jit(lambda x: x + x)
    for _ in range(4):
        run(torch.ones(2, device="jax"))
    before = taken.count
    assert before > 0
    other = torch.ones(2, dtype=dtype)
    found, expected = run(other.to("jax")), other + other
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()
    assert taken.count == before


def test_arguments_that_share_memory_are_seen(taken):
    def add_twice(x, y):
        x.add_(1)
        return x + y

    run = calque.jit(add_twice)
    x, y = torch.zeros(2, device="jax"), torch.zeros(2, device="jax")
    for _ in range(4):
        run(x, y)
    assert taken.count > 0
    assert run(x, x).tolist() == [10, 10]
    assert run(x, y).tolist() == [6, 6]


def test_an_argument_that_is_part_of_the_state_is_seen(taken):
    state = torch.zeros(2, device="jax")

    def count(x):
        state.add_(1)
        return state + x

    run = calque.jit(count)
    x = torch.zeros(2, device="jax")
    for _ in range(4):
        run(x)
    assert taken.count > 0
    assert run(state).tolist() == [10, 10]


def test_tensors_of_another_device_and_other_values_are_no_such_arguments(taken):
    run = calque.jit(lambda x: x * 2)
    for _ in range(4):
        run(torch.ones(2, device="jax"))
    before = taken.count
    assert before > 0
    assert run(torch.ones(2)).tolist() == [2, 2]
    assert run(3) == 6
    assert run(x=torch.ones(2, device="jax")).tolist() == [2, 2]
    assert taken.count == before


def test_a_function_that_differs_from_call_to_call_is_traced_each_time(taken):
    import time

    seen = []
    run = calque.jit(lambda x: (seen.append(1), x * time.perf_counter())[1])
    x = torch.ones(1, device="jax")
    with pytest.warns(calque.RetraceWarning):
        values = [run(x).item() for _ in range(8)]
    assert len(set(values)) == len(values)
    assert taken.count == 0
