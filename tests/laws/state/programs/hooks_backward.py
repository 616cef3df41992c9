"""L5: hooks of gradients, of optimizers, and parametrizations."""

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("hooks", "eager jit rows")
Seen = Iterator[Any]


def _gradients(case: Case, f: Any, m: nn.Module) -> Any:
    m.zero_grad()
    f(case.x).sum().backward()
    return {name: p.grad for name, p in m.named_parameters()}


def _backward_inside(m: Any) -> Any:
    def f(x):
        m.zero_grad()
        m(x).sum().backward()

    return f


@program(states=2)
def tensor_hook_on_a_parameter(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(_backward_inside(m))
    for step in range(4):
        if step == 1:
            handle = m.weight.register_hook(lambda g: g * 10)
        if step == 3:
            handle.remove()
        f(case.x)
        yield m


@program(states=2)
def tensor_hook_whose_closure_changes(case: Case) -> Seen:
    m, s = case.linear(), types.SimpleNamespace(gain=2.0)
    m.weight.register_hook(lambda g: g * s.gain)
    f = case.fn(_backward_inside(m))
    for s.gain in (2.0, 3.0, 3.0, 2.0):
        f(case.x)
        yield m


@program(states=2)
def tensor_hook_with_the_backward_outside(case: Case) -> Seen:
    m, s = case.linear(), types.SimpleNamespace(gain=2.0)
    m.weight.register_hook(lambda g: g * s.gain)
    f = case.fn(lambda x: m(x))
    for s.gain in (2.0, 3.0, 3.0, 2.0):
        yield _gradients(case, f, m)


@program(states=2)
def tensor_hook_added_before_the_backward_outside(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x))
    yield _gradients(case, f, m)
    y = f(case.x).sum()
    handle = m.weight.register_hook(lambda g: g * 10)
    m.zero_grad()
    y.backward()
    yield m
    handle.remove()
    yield _gradients(case, f, m)


@program(states=2)
def tensor_hook_on_an_intermediate(case: Case) -> Seen:
    m, s = case.linear(), types.SimpleNamespace(gain=2.0)

    def f(x):
        m.zero_grad()
        y = m(x)
        y.register_hook(lambda g: g * s.gain)
        y.sum().backward()

    f = case.fn(f)
    for s.gain in (2.0, 3.0, 3.0, 2.0):
        f(case.x)
        yield m


@program(states=2)
def hook_after_the_gradient_is_accumulated(case: Case) -> Seen:
    m, s = case.linear(), types.SimpleNamespace(rate=0.5)

    def step(p):
        with torch.no_grad():
            p.sub_(p.grad, alpha=s.rate)
        p.grad = None

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(step)

    def f(x):
        m(x).sum().backward()

    f = case.fn(f)
    for s.rate in (0.5, 0.25, 0.25, 0.5):
        f(case.x)
        yield m


@program(states=2)
def hook_after_accumulation_removed(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(_backward_inside(m))

    def scale(p):
        p.grad.mul_(10)

    handle = m.weight.register_post_accumulate_grad_hook(scale)
    f(case.x)
    yield m
    handle.remove()
    f(case.x)
    yield m
    f(case.x)
    yield m


@program(each_call=True)
def hook_after_accumulation_that_counts(case: Case) -> Seen:
    m, seen = case.linear(), []
    for name, p in m.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append(name))
    f = case.fn(_backward_inside(m))
    for _ in range(3):
        f(case.x)
        yield sorted(seen)


@program(states=2)
def full_backward_hook(case: Case) -> Seen:
    m, s = case.on(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))), types.SimpleNamespace(g=2.0)
    m[1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * s.g,))
    f = case.fn(_backward_inside(m))
    for s.g in (2.0, 3.0, 3.0, 2.0):
        f(case.x)
        yield m


@program(states=2)
def full_backward_pre_hook(case: Case) -> Seen:
    m = case.on(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
    f = case.fn(_backward_inside(m))
    f(case.x)
    yield m
    handle = m[1].register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 5,))
    f(case.x)
    yield m
    f(case.x)
    yield m
    handle.remove()
    f(case.x)
    yield m


@program(states=2)
def full_backward_hook_with_the_backward_outside(case: Case) -> Seen:
    m = case.on(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
    f = case.fn(lambda x: m(x))
    yield _gradients(case, f, m)
    handle = m[1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 5,))
    yield _gradients(case, f, m)
    yield _gradients(case, f, m)
    handle.remove()
    yield _gradients(case, f, m)


@program(states=2)
def global_full_backward_hook(case: Case) -> Seen:
    m = case.on(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
    f = case.fn(_backward_inside(m))
    f(case.x)
    yield m
    handle = nn.modules.module.register_module_full_backward_hook(
        lambda module, inputs, outputs: tuple(None if g is None else g * 3 for g in inputs)
    )
    case.undo(handle.remove)
    f(case.x)
    yield m
    f(case.x)
    yield m
    handle.remove()
    f(case.x)
    yield m


@program(states=2)
def hooks_around_the_step_of_an_optimizer(case: Case) -> Seen:
    m, s = case.linear(), types.SimpleNamespace(decay=0.5)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def shrink(optimizer, args, kwargs):
        with torch.no_grad():
            for p in m.parameters():
                p.mul_(s.decay)

    opt.register_step_pre_hook(shrink)
    opt.register_step_post_hook(shrink)

    def f(x):
        opt.zero_grad()
        m(x).sum().backward()
        opt.step()

    f = case.fn(f)
    for s.decay in (0.5, 0.25, 0.25, 0.5):
        f(case.x)
        yield m


@program(states=2)
def step_hook_of_an_optimizer_added_later(case: Case) -> Seen:
    m = case.linear()
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def f(x):
        opt.zero_grad()
        m(x).sum().backward()
        opt.step()

    def clip(optimizer, args, kwargs):
        torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1)

    f = case.fn(f)
    for step in range(4):
        if step == 1:
            handle = opt.register_step_pre_hook(clip)
        if step == 3:
            handle.remove()
        f(case.x)
        yield m


@program(states=4)
def global_step_hook_of_optimizers(case: Case) -> Seen:
    m, counts = case.linear(), {"steps": 0}
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def f(x):
        opt.zero_grad()
        m(x).sum().backward()
        opt.step()

    def count(optimizer, args, kwargs):
        counts["steps"] = 1 - counts["steps"]

    f = case.fn(f)
    f(case.x)
    yield m, counts
    handle = register_optimizer_step_post_hook(count)
    case.undo(handle.remove)
    for _ in range(2):
        f(case.x)
        yield m, counts
    handle.remove()
    f(case.x)
    yield m, counts


@program(states=2, modes="jit")
def hooks_of_the_state_dict(case: Case) -> Seen:
    m, s = case.linear(), types.SimpleNamespace(gain=2.0)

    def double(module, state, prefix, metadata):
        state[prefix + "bias"] = state[prefix + "bias"] * s.gain

    m.register_state_dict_post_hook(double)
    f = case.fn(lambda x: m.state_dict()["bias"] + x[:2])
    for s.gain in (2.0, 3.0, 3.0, 2.0):
        yield f(case.x)


class _Scaled(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.gain = gain

    def forward(self, w):
        return w * self.gain


@program(states=3)
def parametrization_added_changed_and_removed(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x))
    yield f(case.x)
    parametrize.register_parametrization(m, "weight", _Scaled(2.0))
    yield f(case.x)
    m.parametrizations["weight"][0].gain = 3.0
    yield f(case.x)
    parametrize.remove_parametrizations(m, "weight", leave_parametrized=False)
    yield f(case.x)


@program(states=1)
def weight_norm_and_spectral_norm(case: Case) -> Seen:
    m = case.on(parametrizations.weight_norm(nn.Linear(3, 2)))
    n = case.on(parametrizations.spectral_norm(nn.Linear(3, 2)))
    f = case.fn(lambda x: m(x) + n(x))
    for i in range(3):
        yield f(case.x + i)
        with torch.no_grad():
            m.parametrizations.weight.original0.mul_(2)


@program(states=3)
def pruned_module(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x))
    yield f(case.x)
    prune.l1_unstructured(m, "weight", amount=2)
    yield f(case.x)
    with torch.no_grad():
        m.weight_mask.zero_()
    yield f(case.x)
    prune.remove(m, "weight")
    yield f(case.x)


@program(states=2)
def saved_tensor_hooks(case: Case) -> Seen:
    m, s = case.linear(), types.SimpleNamespace(gain=2.0)

    def f(x):
        m.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * s.gain, lambda t: t):
            y = m(x).exp()
        y.sum().backward()

    f = case.fn(f)
    for s.gain in (2.0, 3.0, 3.0, 2.0):
        f(case.x)
        yield m


@program(states=2)
def hook_with_its_own_class(case: Case) -> Seen:
    class Recorder:
        def __init__(self):
            self.scale, self.on = 2.0, True

        def __call__(self, module, args, y):
            return y * self.scale if self.on else None

    m, recorder = case.linear(), Recorder()
    m.register_forward_hook(recorder)
    f = case.fn(lambda x: m(x))
    for recorder.on in (True, False, False, True):
        yield f(case.x)


@program(states=1)
def hook_on_the_result_outside(case: Case) -> Seen:
    m, seen = case.linear(), []
    f = case.fn(lambda x: m(x))
    for _ in range(3):
        m.zero_grad()
        y = f(case.x)
        y.register_hook(lambda g: seen.append(g.sum().item()) or g * 2)
        y.sum().backward()
        yield m, seen
