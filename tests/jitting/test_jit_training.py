"""Whole training steps under calque.jit agree with eager CPU PyTorch."""

import copy
import inspect
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import calque


def batches(count: int, device: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(8, 5, generator=generator).to(device),
            torch.randint(0, 3, (8,), generator=generator).to(device),
        )
        for _ in range(count)
    ]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    # No bias before BatchNorm, because its gradient is rounding noise that Adam would amplify.
    return nn.Sequential(nn.Linear(5, 8, bias=False), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "sgd-nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd-dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "sgd-loop": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam-amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adam-loop": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1, weight_decay=0.1),
    "adafactor-lists": lambda p: torch.optim.Adafactor(p, lr=0.1, foreach=True, maximize=True),
}


def train(model, optimizer, device, wrap, steps=5, scheduler=None, zero_first=False):
    def step(x, y):
        if zero_first:
            optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if not zero_first:
            optimizer.zero_grad()
        return loss

    step = wrap(step)
    losses = []
    for x, y in batches(steps, device):
        losses.append(step(x, y).item())
        if scheduler is not None:
            scheduler.step()
    return losses, step


def close(actual, expected, tolerance=2e-4):
    torch.testing.assert_close(
        torch.tensor(actual), torch.tensor(expected), rtol=tolerance, atol=tolerance
    )


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_as_on_the_cpu(name):
    make = OPTIMIZERS[name]
    reference = make_model()
    expected, _ = train(reference, make(reference.parameters()), "cpu", lambda f: f)
    model = make_model().to("jax")
    actual, step = train(model, make(model.parameters()), "jax", calque.jit)
    close(actual, expected)
    for (key, want), got in zip(
        reference.state_dict().items(), model.state_dict().values(), strict=True
    ):
        assert torch.allclose(got.cpu().double(), want.double(), atol=2e-3), key
    if name != "sgd-dampening":
        assert step.compilations == 1


class Clipping(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                norm = parameter.grad.norm().item()
                if norm > 1.0:
                    parameter.grad.div_(norm)
        return super().step(closure)


def test_an_optimizer_that_needs_values_is_an_error_that_changes_nothing():
    model = make_model().to("jax")
    optimizer = Clipping(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(calque.TraceError, match="read as a Python number"):
        train(model, optimizer, "jax", calque.jit)
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())


def test_optimizer_state_made_in_the_first_step_costs_no_second_trace():
    model = make_model().to("jax")
    _, step = train(model, torch.optim.AdamW(model.parameters()), "jax", calque.jit)
    assert step.history == ["first call"]
    assert step.compilations == 1


def test_zero_grad_first_compiles_once():
    model = make_model().to("jax")
    optimizer = torch.optim.AdamW(model.parameters())
    _, step = train(model, optimizer, "jax", calque.jit, zero_first=True)
    assert step.compilations == 1


SCHEDULERS = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "one-cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.05, total_steps=10),
}


@pytest.mark.parametrize("optimizer", ["sgd-momentum", "adamw"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_change_inputs_and_do_not_retrace(name, optimizer):
    make = OPTIMIZERS[optimizer]
    reference = make_model()
    opt = make(reference.parameters())
    expected, _ = train(reference, opt, "cpu", lambda f: f, scheduler=SCHEDULERS[name](opt))
    model = make_model().to("jax")
    opt = make(model.parameters())
    actual, step = train(model, opt, "jax", calque.jit, scheduler=SCHEDULERS[name](opt))
    close(actual, expected)
    assert len(step.history) == 1


@pytest.mark.parametrize("holder", ["model", "optimizer"])
def test_a_scheduler_kept_in_what_the_step_uses_is_compared_by_the_names_that_code_reads(holder):
    model = nn.Linear(2, 2).to("jax")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=9)
    owner = model if holder == "model" else optimizer
    owner.plan = scheduler
    x = torch.ones(1, 2, device="jax")

    @calque.jit
    def step():
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _ in range(3):
        step()
        scheduler.step(1.0)
    assert step.history == ["first call"]

    # A method of the scheduler reads state that the function does not name.
    cooling = calque.jit(lambda: model(x) * 0 + owner.plan.in_cooldown, verify=False)
    epoch = calque.jit(lambda: model(x) * 0 + owner.plan.last_epoch, verify=False)
    for count in (1, 0):
        scheduler.cooldown_counter = count
        scheduler.last_epoch += 1
        assert cooling()[0, 0].item() == count
        assert epoch()[0, 0].item() == scheduler.last_epoch


def scheduler_after(optimizer, scheduler):
    optimizer.step()
    scheduler.step()  # here


@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")
def test_a_scheduler_inside_is_an_error_that_changes_nothing():
    model = make_model().to("jax")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    before = copy.deepcopy(model.state_dict())

    @calque.jit
    def step(x, y):
        F.cross_entropy(model(x), y).backward()
        scheduler_after(optimizer, scheduler)

    lines, first = inspect.getsourcelines(scheduler_after)
    line = first + next(i for i, text in enumerate(lines) if "# here" in text)
    for _ in range(2):
        with pytest.raises(calque.TraceError, match="outside the jitted function") as caught:
            step(*batches(1, "jax")[0])
        assert f"{__file__}:{line} in scheduler_after: 'lr' of SGD" in str(caught.value)
        for key, value in model.state_dict().items():
            assert torch.equal(value, before[key]), key
        assert all(p.grad is None for p in model.parameters())
        assert not optimizer.state
        assert (optimizer.param_groups[0]["lr"], scheduler.last_epoch) == (0.1, 0)


def halved_before(optimizer, count):
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    optimizer.step()


def set_before(optimizer, count):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 if count < 2 else 0.02
    optimizer.step()


def set_after(optimizer, count):
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.05


def updated_before(optimizer, count):
    optimizer.param_groups[0].update(lr=0.1 / (count + 1))
    optimizer.step()


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
@pytest.mark.parametrize("update", [halved_before, set_before, set_after, updated_before])
def test_a_learning_rate_assigned_inside_is_that_of_each_call(update):
    def run(device, wrap):
        model = make_model().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        seen = []

        def step(x, y, count):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            update(optimizer, count)

        step = wrap(step)
        for count, (x, y) in enumerate(batches(6, device)):
            step(x, y, min(count, 3))
            seen.append(optimizer.param_groups[0]["lr"])
            if count == 4:
                optimizer.param_groups[0]["lr"] = 0.3
        return [p.detach().cpu() for p in model.parameters()], seen

    expected, actual = run("cpu", lambda f: f), run("jax", calque.jit)
    assert actual[1] == expected[1]
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-4, atol=1e-5)


def test_gradients_accumulate_over_calls():
    reference, model = make_model(), make_model().to("jax")

    @calque.jit
    def accumulate(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for (x, y), (dx, dy) in zip(batches(3, "cpu"), batches(3, "jax"), strict=True):
        F.cross_entropy(reference(x), y).backward()
        accumulate(dx, dy)
    for want, got in zip(reference.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got.grad.cpu(), want.grad, rtol=1e-4, atol=1e-5)
    assert len(accumulate.history) == 2  # first without gradients, then adding to them


def test_clipping_and_an_average_of_the_weights():
    def run(device, wrap):
        model = make_model().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        average = copy.deepcopy(model)

        def step(x, y):
            F.cross_entropy(model(x), y).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for a, p in zip(average.parameters(), model.parameters(), strict=True):
                    a.lerp_(p, 0.1)
            return norm

        step = wrap(step)
        norms = [step(x, y).item() for x, y in batches(4, device)]
        return norms, [p.detach().cpu() for p in average.parameters()]

    norms, average = run("cpu", lambda f: f)
    got_norms, got_average = run("jax", calque.jit)
    close(got_norms, norms)
    for want, got in zip(average, got_average, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


def test_train_and_eval_are_two_programs():
    model = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5)).to("jax")
    run = calque.jit(model)
    x = torch.ones(4, 5, device="jax")
    with torch.no_grad():
        model.train()
        assert (run(x) == 0).any().item()
        model.eval()
        assert torch.equal(run(x), run(x))
        assert torch.allclose(run(x), model(x))
        model.train()
        assert (run(x) == 0).any().item()
    assert len(run.history) == 2
    assert "training" in run.history[1]


def test_frozen_parameters_retrace():
    model = make_model().to("jax")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (x, y), *_ = batches(1, "jax")

    @calque.jit
    def step(x, y):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    step(x, y)
    model[0].requires_grad_(False)
    frozen = model[0].weight.detach().clone()
    step(x, y)
    assert torch.equal(model[0].weight, frozen)
    assert len(step.history) == 2


def test_dropout_differs_per_call_and_follows_the_seed():
    model = nn.Dropout(0.5).to("jax")
    run = calque.jit(model)
    x = torch.ones(64, device="jax")
    torch.manual_seed(3)
    first, second = run(x), run(x)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(run(x), first)
    assert len(run.history) == 1


@pytest.mark.parametrize("kind", ["Adam", "NAdam", "RAdam"])
def test_bias_is_corrected_as_exactly_as_python_floats_do_it(kind):
    """In float32, 1 - 0.999 keeps four digits: the first updates differed by 2e-5 of their size."""
    before = torch.linspace(-1e-3, 1e-3, 7)
    updates = []
    for device in ("cpu", "jax"):
        parameter = nn.Parameter(before.clone().to(device))
        optimizer = getattr(torch.optim, kind)([parameter], lr=1.0)

        def step(parameter=parameter, optimizer=optimizer):
            parameter.square().sum().backward()
            optimizer.step()

        (calque.jit(step) if device == "jax" else step)()
        updates.append((parameter.detach().cpu() - before).double())
        assert optimizer.state[parameter]["step"].dtype == torch.float32
    torch.testing.assert_close(updates[1], updates[0], rtol=1e-6, atol=0)


def test_step_counts_are_as_before_after_a_trace_that_fails():
    parameter = nn.Parameter(torch.ones(2, device="jax"))
    optimizer = torch.optim.Adam([parameter])

    @calque.jit
    def step(value):
        parameter.sum().backward()
        optimizer.step()
        return value.item()

    with pytest.raises(calque.TraceError):
        step(torch.ones((), device="jax"))
    assert not optimizer.state


class Averaging(torch.optim.Optimizer):
    """An optimizer as users write them, with a count of its own on the device."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros((), device=p.device)
                    state["mean"] = torch.zeros_like(p)
                state["step"] = state["step"] + 1
                state["mean"].lerp_(p.grad, 1 / state["step"])
                p.sub_(group["lr"] * state["mean"])
        return loss


def test_an_optimizer_of_the_users_beside_one_of_pytorch():
    found = []
    for device, wrap in (("cpu", lambda f: f), ("jax", calque.jit)):
        torch.manual_seed(0)
        layer, x = nn.Linear(4, 3).to(device), torch.ones(2, 4, device=device)
        first = Averaging(layer.parameters(), lr=0.1)
        second = torch.optim.Adam(layer.parameters(), lr=0.01)

        def step(x, layer=layer, first=first, second=second):
            def closure():
                first.zero_grad()
                loss = layer(x).square().sum()
                loss.backward()
                return loss

            loss = first.step(closure)
            second.step()
            first.step(closure)
            second.step()
            return loss.detach()

        step = wrap(step)
        losses = [step(x).item() for _ in range(3)]
        second.load_state_dict(second.state_dict())
        losses.append(step(x).item())
        counts = [state["step"].item() for o in (first, second) for state in o.state.values()]
        found.append((losses, counts))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-5)
    assert found[1][1] == found[0][1] == [8.0] * 4


@pytest.mark.parametrize("kind", ["Adam", "RAdam", "ASGD"])
def test_the_state_of_a_jitted_run_goes_on_in_plain_pytorch(kind):
    make = getattr(torch.optim, kind)
    torch.manual_seed(0)
    start, x = nn.Linear(3, 2), torch.ones(2, 3)
    expected, model = copy.deepcopy(start), copy.deepcopy(start).to("jax")

    def training(model, optimizer, x):
        def step():
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()

        return step

    optimizer = make(model.parameters(), lr=0.1)
    settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    step = calque.jit(training(model, optimizer, x.to("jax")))
    for _ in range(3):
        step()
    assert not any("capturable" in reason for reason in step.history)
    left = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    assert left == settings
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    loaded = copy.deepcopy(model).cpu()
    going_on = make(loaded.parameters(), lr=0.1)
    going_on.load_state_dict(torch.load(buffer, map_location="cpu"))
    reference = training(expected, make(expected.parameters(), lr=0.1), x)
    for _ in range(5):
        reference()
    for _ in range(2):
        training(loaded, going_on, x)()
        step()
    torch.testing.assert_close(loaded.weight, expected.weight)
    torch.testing.assert_close(model.weight.cpu(), expected.weight)


def test_step_counts_of_a_checkpoint_on_the_cpu_are_no_guard():
    model = nn.Linear(3, 2).to("jax")
    x = torch.ones(2, 3, device="jax")
    saved = torch.optim.AdamW(copy.deepcopy(model).cpu().parameters())
    saved.param_groups[0]["params"][0].grad = torch.ones(2, 3)
    saved.param_groups[0]["params"][1].grad = torch.ones(2)
    saved.step()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(saved.state_dict())

    @calque.jit
    def step():
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    assert step.history == ["first call"]
    assert "values of CPU tensors" not in str(step.explain())
    assert {state["step"].item() for state in optimizer.state.values()} == {4}


@pytest.mark.parametrize(
    "make",
    [
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        lambda params: torch.optim.Adam(params, lr=0.1, foreach=False),
        lambda params: torch.optim.NAdam(params, lr=0.1),
        lambda params: torch.optim.Adagrad(params, lr=0.1),
    ],
    ids=["SGD", "Adam", "NAdam", "Adagrad"],
)
@pytest.mark.parametrize("scheduled", [False, True])
def test_an_optimizer_of_copies_is_made_anew_by_each_call(make, scheduled):
    torch.manual_seed(0)
    start, x = nn.Linear(3, 2), torch.ones(2, 3)

    def training(model):
        def step(x):
            inner = copy.deepcopy(model)
            optimizer = make(inner.parameters())
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            for _ in range(3):
                optimizer.zero_grad()
                inner(x).square().sum().backward()
                optimizer.step()
                if scheduled:
                    scheduler.step()
            with torch.no_grad():
                for parameter, copied in zip(model.parameters(), inner.parameters(), strict=True):
                    parameter.lerp_(copied, 0.5)

        return step

    model = copy.deepcopy(start).to("jax")
    reference, step = training(start), calque.jit(training(model))
    for _ in range(4):
        reference(x)
        step(x.to("jax"))
    torch.testing.assert_close(model.weight.cpu(), start.weight)
    assert step.history == ["first call"]


@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
@pytest.mark.parametrize("kind", ["sgd", "sgd-momentum", "adam"])
@pytest.mark.parametrize("kept", [False, True])
def test_an_optimizer_of_parameters_from_outside_is_made_by_each_call(kind, kept):
    def run(device, jit):
        weight = torch.ones(2, device=device, requires_grad=True)
        made = []

        def step(x):
            if not made or not kept:
                made[:] = [OPTIMIZERS[kind]([weight])]
            made[0].zero_grad()
            (weight.square() * x).sum().backward()
            made[0].step()
            return weight.detach() * 1

        step = jit(step)
        found = [step(torch.tensor([0.5, i], device=device)).tolist() for i in range(6)]
        states = made[0].state_dict()["state"].values()
        return found, [float(s["step"]) for s in states if "step" in s], step

    found, counts, step = run("jax", calque.jit)
    expected, expected_counts, _ = run("cpu", lambda fn: fn)
    assert counts == expected_counts
    for one, other in zip(found, expected):
        assert one == pytest.approx(other, abs=1e-5)
    assert len(step.history) <= (3 if kept else 6)
