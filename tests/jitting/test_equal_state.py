"""Equal numbers in the state that stay equal are passed to a program once."""

import copy

import pytest
import torch
from torch import nn

import calque
from calque.program import equal_state
from tests.jitting.taking import Taken


def program_of(jitted):
    (program,) = (one for known in jitted.programs.values() for one in known)
    return program


def groups_of(jitted):
    equal = program_of(jitted).equal
    return [] if equal is None else [len(group) for group in equal.groups]


def training(optimizer):
    """A step on the CPU and one on the device, with their optimizers, from equal weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    made = []
    for own, data in ((copy.deepcopy(model), x), (model.to("jax"), x.to("jax"))):
        stepping = optimizer(own.parameters())

        def step(data, own=own, stepping=stepping):
            loss = own(data).square().mean()
            loss.backward()
            stepping.step()
            stepping.zero_grad()
            return loss

        made.append((step, stepping, data))
    (step, stepping, x), (own, mine, data) = made
    jitted = calque.jit(own)
    losses = lambda: (step(x).item(), jitted(data).item())
    return losses, jitted, stepping, mine


def counts(optimizer):
    return [state["step"].item() for state in optimizer.state.values()]


def agree(losses, times):
    for _ in range(times):
        expected, found = losses()
        assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RAdam])
def test_counts_of_steps(monkeypatch, optimizer):
    taken = Taken(monkeypatch)
    losses, jitted, theirs, mine = training(optimizer)
    agree(losses, 5)
    assert 4 in groups_of(jitted)
    assert counts(mine) == counts(theirs) == [5.0] * 4
    assert taken.alone > 0
    assert len(jitted.history) == 1


def test_counts_that_are_made_different():
    losses, jitted, theirs, mine = training(torch.optim.Adam)
    agree(losses, 4)
    for optimizer in (theirs, mine):
        next(iter(optimizer.state.values()))["step"].add_(100)
    agree(losses, 5)
    assert counts(mine) == counts(theirs) == [109.0, 9.0, 9.0, 9.0]
    assert len(jitted.history) == 2


def test_counts_of_parameters_that_are_left_out_at_times():
    torch.manual_seed(0)
    layers, x = nn.ModuleList(nn.Linear(3, 3) for _ in range(2)), torch.randn(5, 3)
    made = []
    for own in (copy.deepcopy(layers), layers.to("jax")):
        stepping = torch.optim.Adam(own.parameters())

        def step(x, left_out, own=own, stepping=stepping):
            for index, layer in enumerate(own):
                x = x if index == left_out else layer(x)
            x.square().mean().backward()
            stepping.step()
            stepping.zero_grad()

        made.append((step, stepping))
    (step, theirs), (own, mine) = made
    jitted = calque.jit(own)
    for left_out in (None, 1, None, 1, None):
        step(x, left_out)
        jitted(x.to("jax"), left_out)
        assert counts(mine) == counts(theirs)
    for ours, other in zip(layers.parameters(), theirs.param_groups[0]["params"], strict=True):
        assert torch.allclose(ours.cpu(), other, atol=1e-6)
    assert len(jitted.history) <= 4  # each is compiled at most once more


def test_equal_counts_in_arrays_of_their_own():
    losses, jitted, theirs, mine = training(torch.optim.Adam)
    agree(losses, 5)
    before = [state["step"] for state in mine.state.values()]
    for optimizer in (theirs, mine):
        for state in optimizer.state.values():
            state["step"].mul_(3)
    agree(losses, 4)
    assert counts(mine) == counts(theirs) == [19.0] * 4
    assert len(jitted.history) == 1
    assert all(a is state["step"] for a, state in zip(before, mine.state.values(), strict=True))


def test_a_state_that_is_loaded():
    losses, _, theirs, mine = training(torch.optim.Adam)
    agree(losses, 4)
    kept = [copy.deepcopy(one.state_dict()) for one in (theirs, mine)]
    agree(losses, 2)
    for optimizer, state in zip((theirs, mine), kept, strict=True):
        optimizer.load_state_dict(state)
    agree(losses, 4)
    assert counts(mine) == counts(theirs) == [8.0] * 4


def numbers(count):
    """Numbers that stand on one array."""
    first = torch.ones((), device="jax")
    return [first, *(first.clone() for _ in range(count - 1))]


@pytest.mark.parametrize(
    ("update", "groups"),
    [
        (lambda a, b, c, x: (a + 1, b + 1, c + 1), [3]),
        (lambda a, b, c, x: (a + 1, b + 1, c * 2), [2]),
        (lambda a, b, c, x: (b + 1, a + 1, c), [2]),
        (lambda a, b, c, x: (a + 1, c + 1, c * 2), []),
        (lambda a, b, c, x: (a * x[0], b * x[0], c * x[1]), [2]),
        (lambda a, b, c, x: (a * x.sum(), b * x.sum(), c + x.sum()), [2]),
        (lambda a, b, c, x: (a * (x + 1).sum(), b * (x + 2).sum(), c + x.sum()), []),
        (lambda a, b, c, x: (torch.sqrt(a), torch.rsqrt(b) * 2, torch.sqrt(c)), [2]),
        (lambda a, b, c, x: (a.where(x[0] > 0, b), b.where(x[0] > 0, a), c + 3), None),
    ],
)
def test_only_what_stays_equal_is_one(update, groups):
    on_cpu, on_device = [torch.ones(()) for _ in range(3)], numbers(3)
    x = torch.tensor([0.5, -2.0])

    def step(state, x):
        for one, value in zip(state, update(*state, x), strict=True):
            one.copy_(value)
        return state[0] + x

    jitted = calque.jit(lambda x: step(on_device, x))
    for _ in range(6):
        assert torch.allclose(jitted(x.to("jax")).cpu(), step(on_cpu, x))
        assert [one.item() for one in on_device] == pytest.approx([one.item() for one in on_cpu])
    assert groups is None or groups_of(jitted) == groups
    assert len(jitted.history) == 1


def test_what_is_read_at_the_same_time_stays():
    state = numbers(3)
    jitted = calque.jit(lambda x: [one.add_(1) for one in state] and x * state[2])
    x, held = torch.ones(2, device="jax"), []
    for _ in range(6):
        held.append([calque.to_jax(one) for one in state])
        jitted(x)
    assert [[float(one) for one in each] for each in held] == [[1.0 + i] * 3 for i in range(6)]


def test_each_result_of_an_operator_on_lists_is_looked_at_alone(monkeypatch):
    looked = []

    def counted(variable, is_single=equal_state._is_single):
        looked.append(variable)
        return is_single(variable)

    monkeypatch.setattr(equal_state, "_is_single", counted)
    numbers = []
    for depth in (4, 16):
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(depth))).to("jax")
        stepping = torch.optim.Adam(model.parameters())

        def step(data, model=model, stepping=stepping):
            model(data).sum().backward()
            stepping.step()
            stepping.zero_grad()

        looked.clear()
        calque.jit(step).lower(torch.ones(1, 2, device="jax"))
        numbers.append(len(looked))
    assert numbers[1] < 5 * numbers[0]
