"""State that a jitted function reads, writes, makes or that is rebound around it."""

import contextlib
import functools
import gc
import sys
import types
import weakref

import jax.monitoring
import pytest
import torch
from torch import nn
from torch._functorch._aot_autograd.utils import register_buffer_assignment_hook
from torch.optim.optimizer import _global_optimizer_pre_hooks as global_step_hooks
from torch.optim.optimizer import register_optimizer_step_pre_hook

import calque
from calque.state import Snapshot


def ones(*shape):
    return torch.ones(*shape, device="jax")


def test_a_rebound_closure_variable_is_read_anew():
    w = ones(2)
    run = calque.jit(lambda x: x * w)
    assert run(ones(2)).tolist() == [1, 1]
    w = ones(2) * 5
    assert run(ones(2)).tolist() == [5, 5]
    w = ones(1) * 7
    assert run(ones(2)).tolist() == [7, 7]
    w = 3
    assert run(ones(2)).tolist() == [3, 3]


GLOBAL = None


def test_a_rebound_global_is_read_anew():
    global GLOBAL
    run = calque.jit(lambda x: x * GLOBAL)
    GLOBAL = ones(2)
    assert run(ones(2)).tolist() == [1, 1]
    GLOBAL = ones(2) * 3
    assert run(ones(2)).tolist() == [3, 3]


def test_a_rebound_parameter_is_read_anew():
    model = nn.Linear(2, 2, bias=False).to("jax")
    run = calque.jit(model)
    run(ones(1, 2))
    model.weight = nn.Parameter(ones(2, 2) * 3)
    assert run(ones(1, 2)).tolist() == [[6, 6]]
    model.weight.data = ones(2, 2) * 4
    assert run(ones(1, 2)).tolist() == [[8, 8]]
    with torch.no_grad():
        model.weight.set_(ones(2, 2) * 5)
    assert run(ones(1, 2)).tolist() == [[10, 10]]


def test_a_swapped_submodule_is_run():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU()).to("jax")
    run = calque.jit(lambda x: model(x))
    first = run(ones(1, 2))
    model[1] = nn.Tanh()
    torch.testing.assert_close(run(ones(1, 2)), model[0](ones(1, 2)).tanh())
    model[0] = nn.Identity()
    torch.testing.assert_close(run(ones(1, 2)), ones(1, 2).tanh())
    model.append(nn.Identity())
    model.register_forward_hook(lambda m, a, out: out * 2)
    torch.testing.assert_close(run(ones(1, 2)), ones(1, 2).tanh() * 2)
    assert first is not None


def test_a_rebound_attribute_of_a_plain_object():
    class Holder:
        pass

    holder = Holder()
    holder.w = ones(2)
    holder.scale = 2
    holder.items = [ones(2)]
    run = calque.jit(lambda x: x * holder.w * holder.scale + holder.items[0])
    assert run(ones(2)).tolist() == [3, 3]
    holder.w = ones(2) * 5
    assert run(ones(2)).tolist() == [11, 11]
    holder.scale = 3
    assert run(ones(2)).tolist() == [16, 16]
    holder.items[0] = ones(2) * 2
    assert run(ones(2)).tolist() == [17, 17]


def test_an_optimizer_given_other_parameters():
    a, b = ones(2).requires_grad_(), ones(2).requires_grad_()
    optimizer = torch.optim.SGD([a], lr=1.0)

    @calque.jit
    def step():
        (a * 1).sum().backward()
        (b * 1).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    assert a.tolist() == [0, 0]
    optimizer.param_groups[0]["params"][0] = b
    step()
    assert a.tolist() == [0, 0]
    assert b.tolist()[0] < 1


def test_hidden_state_kept_over_calls_is_not_traced_for_ever():
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.RNNCell(2, 3)
            self.h = None

        def forward(self, x):
            self.h = self.cell(x, self.h)
            return self.h.sum()

    torch.manual_seed(0)
    reference = Memory()
    model = Memory()
    model.load_state_dict(reference.state_dict())
    model.to("jax")
    run = calque.jit(model)
    with torch.no_grad():
        for i in range(5):
            want = reference(torch.full((1, 2), float(i)))
            got = run(torch.full((1, 2), float(i), device="jax"))
            torch.testing.assert_close(got.cpu(), want)
            torch.testing.assert_close(model.h.cpu(), reference.h)
    assert len(run.history) == 2
    model.h = None
    with torch.no_grad():
        run(ones(1, 2))
    assert len(run.history) == 2


def test_state_made_lazily_once():
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = None
            self.count = 0

        def forward(self, x):
            if self.cache is None:
                self.cache = torch.arange(2.0, device=x.device) * 2
            self.count += 1
            return x + self.cache

    model = Rotary()
    run = calque.jit(model)
    for i in range(4):
        assert run(ones(2)).tolist() == [1, 3]
        assert model.count == i + 1
        assert model.cache.tolist() == [0, 2]


def test_a_list_that_grows_gets_every_tensor():
    kept = []

    @calque.jit
    def run(x):
        kept.append(x * 2)
        return x

    for i in range(3):
        run(ones(1) * i)
    assert [t.item() for t in kept] == [0, 2, 4]


def test_rebinding_a_nonlocal_inside():
    total = ones(2)

    @calque.jit
    def run(x):
        nonlocal total
        total = total + x
        return total * 1

    for i in range(4):
        assert run(ones(2)).tolist() == [2 + i] * 2
    assert total.tolist() == [5, 5]
    assert len(run.history) <= 2


def test_batch_norm_statistics_follow_eager():
    torch.manual_seed(0)
    reference, model = nn.BatchNorm1d(3), nn.BatchNorm1d(3).to("jax")
    run = calque.jit(model)
    for _ in range(3):
        x = torch.randn(5, 3)
        torch.testing.assert_close(run(x.to("jax")).cpu(), reference(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.running_var.cpu(), reference.running_var)
    assert model.num_batches_tracked.item() == 3


def test_gradients_that_outlive_the_step():
    w = ones(2).requires_grad_()

    @calque.jit
    def step(x):
        (w * x).sum().backward()

    step(ones(2))
    assert w.grad.tolist() == [1, 1]
    first = w.grad
    step(ones(2) * 2)
    assert w.grad.tolist() == [3, 3]
    assert w.grad is first
    w.grad = None
    step(ones(2))
    assert w.grad.tolist() == [1, 1]
    assert first.tolist() == [3, 3]
    w.grad = ones(2) * 10
    step(ones(2))
    assert w.grad.tolist() == [11, 11]


def test_seeding_inside_and_saving_the_random_state():
    @calque.jit
    def run():
        torch.manual_seed(5)
        a = torch.rand(3, device="jax")
        return a, torch.rand(3, device="jax")

    first, again = run(), run()
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], first[1])
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3, device="jax"), first[0])


def test_random_numbers_are_those_of_eager():
    draw = calque.jit(lambda: torch.rand(3, device="jax"))
    torch.manual_seed(1)
    jitted = [draw(), draw(), torch.rand(3, device="jax")]
    torch.manual_seed(1)
    assert all(torch.equal(j, torch.rand(3, device="jax")) for j in jitted)


def test_prints_happen_once_and_counters_every_time(capsys):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.seen = ""

        def forward(self, x):
            print("tracing")
            self.seen = "yes"
            return x + 1

    for verify, most in ((False, 2), (True, 3)):
        model = Counting()
        run = calque.jit(model, verify=verify)
        for _ in range(4):
            run(ones(1))
        assert 1 <= capsys.readouterr().out.count("tracing") <= most


@pytest.mark.usefixtures("few_objects")
def test_jitted_functions_and_their_models_are_collected():
    model = nn.Linear(2, 2).to("jax")
    optimizer = torch.optim.AdamW(model.parameters())

    @calque.jit
    def step(x):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step(ones(1, 2))
    forward = calque.jit(model)
    forward(ones(1, 2)).sum().backward()
    watched = [weakref.ref(one) for one in (model, optimizer, step, forward, model.weight)]
    model = optimizer = step = forward = None
    gc.collect()
    assert [w() is None for w in watched] == [True] * 5


@pytest.mark.usefixtures("few_objects")
def test_arguments_are_not_kept_alive():
    run = calque.jit(lambda x, y: (x + y[1:], x))
    x, y = ones(2), ones(4)[:3]
    run(x, y)
    watched = [weakref.ref(x), weakref.ref(y), weakref.ref(calque.to_jax(x))]
    del x, y
    gc.collect()
    assert [w() is None for w in watched] == [True] * 3


def test_explain_names_what_was_lifted():
    model = nn.Linear(2, 2).to("jax")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @calque.jit
    def step(x):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step(ones(1, 2))
    step(ones(2, 2))
    text = str(step.explain())
    assert "model.weight" in text
    assert "lr" in text
    assert "shape" in text
    with pytest.raises(RuntimeError):
        step(ones(1, 3))


@pytest.mark.parametrize("other", [ones(2) * 3, [ones(2) * 3], {0: ones(2) * 3}])
def test_the_loop_may_replace_a_hidden_state_by_one_of_another_form(other):
    state = types.SimpleNamespace(hidden=(ones(2), ones(2)))

    @calque.jit
    def step(x):
        first = state.hidden if isinstance(state.hidden, torch.Tensor) else state.hidden[0]
        state.hidden = (x, x * 2)
        return first + x

    assert [step(ones(2)).tolist() for _ in range(3)] == [[2, 2]] * 3
    state.hidden = other
    assert [step(ones(2)).tolist() for _ in range(3)] == [[4, 4], [2, 2], [2, 2]]
    assert state.hidden[1].tolist() == [2, 2]


def test_hidden_states_that_are_views_of_one_tensor():
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(4, 4)
            self.hidden = (torch.zeros(1, 2), torch.zeros(1, 2))

        def forward(self, x):
            h, c = self.mix(torch.cat([self.hidden[0] + x, self.hidden[1]], 1)).chunk(2, 1)
            self.hidden = (h.detach(), c.detach())
            return h + c

    torch.manual_seed(0)
    reference, model = Memory(), Memory()
    model.load_state_dict(reference.state_dict())
    model.to("jax")
    model.hidden = tuple(h.to("jax") for h in model.hidden)
    run = calque.jit(model)
    for _ in range(5):
        torch.testing.assert_close(run(ones(1, 2)).cpu(), reference(torch.ones(1, 2)))
    assert len(run.history) <= 2


def test_optimizer_state_that_was_loaded():
    w = ones(2).requires_grad_()
    optimizer = torch.optim.SGD([w], lr=1.0, momentum=0.5)

    @calque.jit
    def step():
        w.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    saved = optimizer.state_dict()
    saved["state"][0]["momentum_buffer"] = ones(2) * 100
    saved["param_groups"][0]["lr"] = 2.0
    optimizer.load_state_dict(saved)
    step()
    assert w.tolist() == [0 - 2 * 51] * 2


def test_a_counter_beside_the_function_does_not_retrace():
    class Trainer:
        def __init__(self):
            self.w = ones(2)
            self.steps = 0

        @calque.jit
        def update(self, x):
            self.w += x
            return self.total()

        def total(self):
            return self.w.sum() * self.scale()

        def scale(self):
            return self.factor

        factor = 2

        def fit(self):
            for _ in range(3):
                self.steps += 1
                last = self.update(ones(2))
            return last

    trainer = Trainer()
    assert trainer.fit().item() == 16
    assert len(Trainer.update.history) == 1
    trainer.factor = 3
    assert trainer.update(ones(2)).item() == 30


def test_a_trace_does_not_look_through_the_heap(monkeypatch):
    def look(*objects):
        raise AssertionError("a trace would take longer, the more objects there are")

    @contextlib.contextmanager
    def doubling():
        yield 2

    @functools.lru_cache
    def factor():
        return 3

    def scale(x, add):
        with doubling() as two:
            return add(x) * two * factor()

    state = {"add": functools.partial(torch.add, 1)}
    function = calque.jit(functools.wraps(scale)(lambda x: scale(x, state["add"])))
    monkeypatch.setattr(gc, "get_referrers", look)
    x = torch.ones(2, device="jax")
    assert [function(x).tolist() for _ in range(3)] == [[12.0, 12.0]] * 3
    state["add"] = torch.neg
    assert function(x).tolist() == [-6.0, -6.0]


def test_hooks_of_calque_are_no_state_of_a_trace():
    """A call in another thread has some for a while: a trace must neither keep nor repeat them."""

    def own(*step):
        raise AssertionError

    def users(*step):
        raise AssertionError

    own.__module__ = Snapshot.__module__
    before = dict(global_step_hooks)
    snapshot = Snapshot()
    with register_optimizer_step_pre_hook(own) as handle:
        assert list(snapshot.changed()) == []
        register_optimizer_step_pre_hook(users)
        assert [now[max(now)] for _, now in snapshot.changed()] == [users]
        snapshot.restore()
        assert dict(global_step_hooks) == {**before, handle.id: own}
    assert dict(global_step_hooks) == before


def test_hooks_of_exports_are_no_state_of_a_trace():
    """`torch.export` in another thread has some for a while."""
    snapshot = Snapshot()
    handle = register_buffer_assignment_hook(nn.Linear(2, 2), {})
    try:
        assert list(snapshot.changed()) == []
    finally:
        handle.remove()


def test_what_a_function_of_a_library_makes_is_no_state():
    source = """
def decorated(fn):
    def wrapper(*args):
        outputs = fn(*args)
        def last():
            return outputs
        return last() * 2
    return wrapper
"""
    names = {"__name__": "somebodys.module"}
    exec(compile(source, "/nowhere/site-packages/somebodys/module.py", "exec"), names)
    step = calque.jit(names["decorated"](lambda x: x + 1))
    x = torch.ones(2, device="jax")
    assert [step(x).tolist() for _ in range(3)] == [[4.0, 4.0]] * 3
    assert step.history == ["first call"]


class Entry:
    def __init__(self, gain):
        self.gain, self.parts = gain, [1.0]


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("make", [Entry, lambda gain: entry_module(gain)])
def test_objects_that_are_held_weakly_are_not_kept_alive(make):
    registry = weakref.WeakValueDictionary()
    entry = registry["entry"] = make(2.0)
    reference = weakref.ref(entry)

    @calque.jit
    def f(x):
        found = registry.get("entry")
        return x if found is None else x * found.gain * len(found.parts)

    x = torch.ones(2, device="jax")
    assert [f(x)[0].item() for _ in range(3)] == [2, 2, 2]
    entry.gain = 3.0
    assert [f(x)[0].item() for _ in range(2)] == [3, 3]
    entry.parts.append(1.0)
    assert f(x)[0].item() == 6
    del entry
    gc.collect()
    assert reference() is None
    assert f(x)[0].item() == 1


def entry_module(gain):
    module = nn.Linear(1, 1).to("jax")
    module.gain, module.parts = gain, [1.0]
    return module


def test_what_a_function_does_to_objects_that_are_held_weakly_is_done_at_each_call():
    entry = Entry(1.0)
    reference = weakref.ref(entry)

    @calque.jit
    def f(x):
        found = reference()
        if found is not None:
            found.last = x * 2
        return x + 1

    for i in range(4):
        f(torch.full((2,), float(i), device="jax"))
        assert entry.last.tolist() == [2 * i, 2 * i]
    assert len(f.history) <= 2


def test_listeners_of_jax_are_no_part_of_a_function_that_is_traced():
    compiled = []

    def keep(event):
        compiled.append(event)

    def listen(event, duration, **_):
        if "backend_compile" in event:
            keep(event)

    model = nn.Linear(5, 7).to("jax")
    # Creates its state with a program, during the trace.
    optimizer = torch.optim.AdamW(model.parameters())

    @calque.jit
    def step(x):
        if x is None:
            x.tolist()  # calls in code with this name are monitored
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for size in range(11, 14):
            step(torch.ones(2, 5, device="jax"))
            torch.ones(size, device="jax").sin()  # the list grows between two calls
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled
    assert step.history == ["first call"]


def test_the_getattr_of_a_module_is_not_asked_for_what_the_program_does_not_read(monkeypatch):
    lazy, asked = types.ModuleType("lazily_filled"), []
    lazy.__getattr__ = lambda name: asked.append(name) or 2.0
    monkeypatch.setitem(sys.modules, "lazily_filled", lazy)

    @calque.jit
    def scaled(x):
        import lazily_filled

        return x * lazily_filled.scale

    assert scaled(torch.ones(2, device="jax")).tolist() == [2, 2]
    assert "__file__" not in asked


def test_looking_for_state_asks_an_object_nothing():
    asked = []

    class Watched:
        def __init__(self):
            self.gain, self.offset = 2.0, torch.ones(2, device="jax")

        def __getattribute__(self, name):
            asked.append(name)
            return object.__getattribute__(self, name)

    watched = Watched()
    run = calque.jit(lambda x: x * watched.gain + watched.offset)
    for _ in range(3):
        asked.clear()
        run(torch.ones(2, device="jax"))
        assert asked == ["gain", "offset"]
