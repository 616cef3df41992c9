"""Numbers that a program keeps on its modules: compared only where the traced code names them."""

import weakref

import pytest
import torch
from torch import nn

import calque
from calque.state import Snapshot


def ones(*shape):
    return torch.ones(*shape, device="jax")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Scaled() for _ in range(3))
        self.note, self.history = "", ()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.scale, self.calls = nn.Parameter(ones(2)), 1.0, 0

    def forward(self, x):
        return x * self.weight * self.scale


def count_everywhere(model, step):
    model.global_step = step
    model.note = f"step {step}"
    if step % 2:
        model.once = step
    else:
        vars(model).pop("once", None)
    for layer in model.layers:
        layer.calls += 1


def test_what_a_loop_counts_on_modules_is_not_compared():
    model = Model()
    run = calque.jit(model)
    for step in range(6):
        count_everywhere(model, step)
        model.layers[step % 3].scale = 1.0 + step // 3
        assert run(ones(2)).tolist() == [2.0 ** max(0, step - 2)] * 2
    assert model.global_step == 5
    assert [layer.calls for layer in model.layers] == [6, 6, 6]
    assert all("scale" in reason for reason in run.history[1:])


@pytest.mark.parametrize("weakly", [False, True])
def test_counters_beside_a_training_step_bring_no_trace(weakly):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    holder = weakref.ref(model) if weakly else lambda: model

    @calque.jit
    def step(x):
        optimizer.zero_grad()
        loss = holder()(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    for count in range(5):
        count_everywhere(model, count)
        losses.append(step(ones(2)).item())
    assert all("gradient" in reason for reason in step.history[1:])
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == 5
    model.history = (1, 2)  # not a plain value, so compared by identity
    assert step(ones(2)).item() < losses[-1]


def test_what_code_names_in_any_way_is_compared():
    model = Model()
    ways = {
        "a method": lambda x: x * model.layers[0].calls,
        "getattr": lambda x: x * getattr(model.layers[0], "calls", 0),
        "a computed name": lambda x: x * getattr(model.layers[0], "cal" + "ls"),
        "its dict": lambda x: x * vars(model.layers[0])["calls"],
        "hasattr": lambda x: x * (2 if hasattr(model, "late") else 1) * model.layers[0].calls,
    }
    for way, function in ways.items():
        run = calque.jit(function)
        for calls in (1, 2, 3):
            model.layers[0].calls = calls
            assert run(ones(2)).tolist() == [calls, calls], way
    model.layers[0].calls, model.late = 1, None
    assert run(ones(2)).tolist() == [2.0, 2.0]


def test_a_program_that_is_traced_again_compares_what_it_reads_now():
    model = Model()
    flag = {"reads": False}
    run = calque.jit(lambda x: x * model.global_step if flag["reads"] else x)
    results = []
    for step in range(6):
        model.global_step, flag["reads"] = step, step >= 3
        results.append(run(ones(1)).item())
    assert results == [1.0, 1.0, 1.0, 3.0, 4.0, 5.0]


def test_what_layers_of_pytorch_read_is_compared():
    class Dropped(nn.Dropout):
        seen = 0

    class Normed(nn.LayerNorm):
        pass

    dropped, normed = Dropped(0.0), Normed(2, elementwise_affine=False)
    run = calque.jit(lambda x: normed(dropped(x)).detach())
    x = torch.tensor([1.0, 3.0], device="jax")
    for count in range(3):
        dropped.seen, normed.count = count, count
        torch.testing.assert_close(run(x).cpu(), torch.tensor([-1.0, 1.0]), atol=1e-4, rtol=0)
    assert run.history == ["first call"]
    normed.eps = 3.0
    torch.testing.assert_close(run(x).cpu(), torch.tensor([-0.5, 0.5]))
    dropped.p = 1.0
    assert run(x).tolist() == [0.0, 0.0]
    dropped.eval()
    torch.testing.assert_close(run(x).cpu(), torch.tensor([-0.5, 0.5]))


def test_what_forward_counts_is_counted_at_every_call():
    class Counting(Scaled):
        def forward(self, x):
            self.calls += 1
            return super().forward(x) * self.calls

    model = Counting()
    run = calque.jit(model)
    for step in range(1, 4):
        model.unrelated = step
        assert run(ones(2)).tolist() == [step, step]
    assert model.calls == 3


def test_functional_does_not_compare_them_either(monkeypatch):
    traces = []

    def traced(*roots):
        traces.append(roots)
        return Snapshot(*roots)

    monkeypatch.setattr("calque.interop.functional.Snapshot", traced)
    model = Scaled()
    apply, parameters = calque.functional(model)
    for step in range(3):
        model.calls = step
        apply(parameters, calque.to_jax(ones(2)))
    assert len(traces) == 1


def test_a_proxy_of_a_module_is_the_module():
    model = nn.Linear(2, 1).to("jax")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    proxy = weakref.proxy(model)

    @calque.jit
    def step(x):
        optimizer.zero_grad()
        proxy(x).sum().backward()
        optimizer.step()

    before = model.weight.detach().cpu().clone()
    for _ in range(3):
        step(ones(1, 2))
    torch.testing.assert_close(model.weight.detach().cpu(), before - 0.3)
