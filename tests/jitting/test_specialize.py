"""`calque.jit` of library code that asks for values: assumed, compared; eager where they differ."""

import copy
import itertools
import pickle
import re
import threading
import types
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import calque
from calque import FallbackWarning
from calque.errors import EagerWarning

_SITE = "/nowhere/site-packages/somebodys"
_files = itertools.count()


def library(source: str) -> dict:
    """The names of a module that stands in an installed package."""
    names: dict = {"torch": torch, "nn": nn, "F": F, "np": np}
    exec(compile(source, f"{_SITE}/module_{next(_files)}.py", "exec"), names)
    return names


def values(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, device="jax")


def plain(result: object) -> list:
    leaves = torch.utils._pytree.tree_leaves(result)
    return [t.detach().cpu().tolist() if isinstance(t, torch.Tensor) else t for t in leaves]


def hits(jitted) -> int:
    programs = [p for known in jitted.programs.values() for p in known]
    return sum(p.assumed.hits for p in programs if p.assumed is not None)


def misses(jitted) -> int:
    programs = [p for known in jitted.programs.values() for p in known]
    return sum(p.assumed.misses for p in programs if p.assumed is not None)


def agree(jitted, f, inputs: list[torch.Tensor]) -> None:
    for x in inputs:
        assert plain(jitted(x)) == plain(f(x))


def warned(run: Callable[[], object]) -> list[warnings.WarningMessage]:
    with pytest.warns(EagerWarning) as caught:
        run()
    return list(caught)


READS = {
    "if": "x if x.sum() > 3 else -x",
    "while": "[x * i for i in range(int(x.abs().sum()))]",
    "item": "x * x.max().item()",
    "int": "x.new_zeros(int(x.abs().max()))",
    "tolist": "[x + v for v in x.tolist()]",
    "numpy": "x * float(x.cpu().numpy().sum())",
    "cpu": "(x.cpu() * 2 + x.cpu()).sum(), x * (x.cpu() + 1).max().item()",
    "message": "(x, f'{x.sum():.2f}')",
    "print": "(x, str(x)[:12])",
    "contains": "x + 1 if 2.0 in x else x",
    "equal": "x if torch.equal(x, x.abs()) else -x",
    "allclose": "x if torch.allclose(x, x.abs()) else -x",
    "two on a line": "x * (int(x[0]) + int(x[1]))",
    "nonzero": "x.nonzero()",
    "nonzero tuple": "x.nonzero(as_tuple=True)",
    "nonzero 0-d": "x.sum().nonzero()",
    "where": "torch.where(x > 0)",
    "mask": "x[x > 0]",
    "mask 2-d": "x.outer(x)[x.outer(x) > 1]",
    "mask of rows": "x.outer(x)[x > 0]",
    "mask 0-d": "x[x.sum() > 0]",
    "mask put": "x.clone().index_put((x > 0,), x[x > 0] * 2)",
    "masked_select": "x.masked_select(x > 1)",
    "unique": "torch.unique(x)",
    "unique with all": "torch.unique(x, return_inverse=True, return_counts=True)",
    "unique rows": "torch.unique(x.outer(x).sign(), dim=0, return_counts=True)",
    "unique columns": "torch.unique(x.outer(x).sign(), dim=1, return_inverse=True)",
    "consecutive": "torch.unique_consecutive(x, return_inverse=True, return_counts=True)",
    "consecutive rows": "torch.unique_consecutive(x.outer(x).sign(), dim=0, return_counts=True)",
    "bincount": "x.abs().long().bincount(minlength=2)",
    "bincount weights": "x.abs().long().bincount(weights=x)",
    "repeat_interleave": "x.repeat_interleave(x.abs().long())",
    "one_hot": "F.one_hot(x.abs().long())",
    "split": "x.split([int(n) for n in torch.stack([x.numel() - (x > 1).sum(), (x > 1).sum()])])",
    "caught": "x * torch.tensor(x.tolist(), device=x.device)",
}
FIRST, SECOND = values(1.0, -1.0, 2.0, 2.0), values(3.0, 2.0, -1.0, 0.0)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", READS)
def test_a_read_is_right_and_settles_in_a_program(name):
    f = library(f"def f(x):\n    return {READS[name]}")["f"]
    jitted = calque.jit(lambda x: f(x))
    for x in (FIRST, FIRST, FIRST, SECOND, SECOND, SECOND, FIRST):
        assert plain(jitted(x)) == plain(f(x))
        assert plain(jitted(x)) == plain(f(x.cpu()))
    assert len(jitted.history) in (1, 2)
    assert hits(jitted) >= 9, str(jitted.explain())
    assert misses(jitted) <= 4


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", sorted(READS.keys() - {"print"}))  # it does not print values
def test_the_users_own_code_raises_as_ever(name):
    names: dict = {"torch": torch, "F": F}
    exec(compile(f"def f(x):\n    return {READS[name]}", "/home/user/script.py", "exec"), names)
    jitted = calque.jit(names["f"])
    for _ in range(2):
        with pytest.raises(calque.TraceError, match=r"script.py:2 in "):
            jitted(FIRST)
    specialized = calque.jit(names["f"], specialize=True)
    for x in (FIRST, FIRST, SECOND):
        assert plain(specialized(x)) == plain(names["f"](x))


def test_never_specialize():
    f = library("def f(x):\n    return x if x.sum() > 3 else -x")["f"]
    jitted = calque.jit(lambda x: f(x), specialize=False)
    with pytest.raises(calque.TraceError, match="read as a Python number"):
        jitted(FIRST)
    with pytest.raises(calque.TraceError, match="read as a Python number"):
        calque.jit(lambda x: f(x)).lower(FIRST)
    with pytest.raises(calque.TraceError):
        calque.functional(f)[0]({}, calque.to_jax(FIRST))


def test_the_choice_is_kept_by_copies():
    jitted = calque.jit(F.relu, specialize=True)
    assert copy.deepcopy(jitted)._settings.specialize is True
    assert pickle.loads(pickle.dumps(jitted))._settings.specialize is True
    assert calque.jit(specialize=False)(F.relu)._settings.specialize is False


def test_wrappers_of_pytorch_are_the_users():
    jitted = calque.jit(lambda x: torch.unique(x))
    with pytest.raises(calque.TraceError, match="test_specialize.py"):
        jitted(FIRST)


def test_modules_of_pytorch_are_a_library():
    model = nn.AdaptiveLogSoftmaxWithLoss(4, 10, [2, 6], div_value=1.0).to("jax")
    x, y = torch.randn(8, 4), torch.tensor([0, 1, 2, 3, 7, 8, 9, 1])
    reference = copy.deepcopy(model).to("cpu")
    jitted = calque.jit(model)
    for labels in (y, y, y.flip(0), 9 - y, 9 - y):
        got = jitted(x.to("jax"), labels.to("jax"))
        want = reference(x, labels)
        torch.testing.assert_close(got.output.detach().cpu(), want.output.detach())
    assert hits(jitted) >= 1


def test_the_user_code_that_a_library_calls_is_the_users():
    apply = library("def apply(f, x):\n    return f(x) if x.sum() > 0 else x")["apply"]
    jitted = calque.jit(lambda x: apply(lambda y: y * y.sum().item(), x))
    jitted(FIRST)  # the first call stops at the library's own `if`
    before = FIRST.tolist()
    with pytest.raises(calque.TraceError, match="test_specialize.py"):
        jitted(FIRST)
    assert FIRST.tolist() == before


STEP = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(9, 4), nn.BatchNorm1d(4)
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(4, 3)
    def forward(self, x):
        rows = self.norm(self.embed(x))
        chosen = rows[x > 2]
        if self.training:
            chosen = self.drop(chosen)
        return self.out(chosen)
"""


def step_of(model, jit: bool) -> Callable:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(x, y):
        loss = F.cross_entropy(model(x), y[: x.shape[0]][x > 2] if not jit else pick(y, x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step.optimizer = optimizer  # type: ignore[attr-defined]
    return step


pick = library("def pick(y, x):\n    return y[x > 2]")["pick"]
BATCHES = [[0, 3, 4, 5], [0, 3, 4, 6], [7, 3, 4, 5], [1, 1, 8, 3], [1, 3, 4, 2], [7, 8, 3, 5]]


def state_of(model, optimizer) -> list[torch.Tensor]:
    moments = [t for s in optimizer.state.values() for t in s.values()]
    return [t.detach().clone().cpu() for t in (*model.state_dict().values(), *moments)]


def test_training_is_right_whatever_the_values():
    torch.manual_seed(0)
    model = library(STEP)["Model"]().to("jax")
    twin, reference = copy.deepcopy(model), copy.deepcopy(model).to("cpu")
    steps = [calque.jit(step_of(model, True)), step_of(twin, True)]
    y = torch.tensor([0, 1, 2, 0])
    torch.jax.manual_seed(3)
    seeds = [torch.jax.get_rng_state()] * 2
    for batch in BATCHES * 3:
        x, losses = torch.tensor(batch, device="jax"), []
        for i, step in enumerate(steps):
            torch.jax.set_rng_state(seeds[i])
            losses.append(step(x, y.to("jax")))
            seeds[i] = torch.jax.get_rng_state()
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)
        assert torch.equal(*seeds), "another count of random numbers"
    for a, b in zip(state_of(model, steps[0].optimizer), state_of(twin, steps[1].optimizer)):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert hits(steps[0]) > misses(steps[0]) > 0

    for module in (model, reference):
        module.load_state_dict(twin.state_dict())
        module.drop.p = 0.0
    losses = []
    for module, run in ((model, calque.jit), (reference, lambda f: f)):
        step, device = run(step_of(module, True)), module.out.weight.device
        batches = [torch.tensor(b, device=device) for b in BATCHES[:3] * 2]
        losses.append([step(x, y.to(device)).item() for x in batches])
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)


FAILING = """
def f(x, model):
    n = int(x.sum())
    y = model(x[None])
    if n == 5:
        raise KeyError("five")
    return y
"""


def test_a_discarded_run_has_no_effect():
    f = library(FAILING)["f"]
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=1.0), nn.Dropout(0.5))
    model = model.to("jax").requires_grad_(False)
    weight = model[0].weight

    @calque.jit
    def step(x):
        weight.add_(1)
        return f(x, lambda row: model(row.repeat(4, 1)))

    for _ in range(2):
        step(values(1.0, 2.0))
    before = [t.clone() for t in model.state_dict().values()]
    random = torch.jax.get_rng_state()
    program = next(iter(step.programs.values()))[0]
    program_misses = program.assumed.misses
    original = step._specializing._fn
    step._specializing._fn = lambda *_: "not run"
    try:
        assert step(values(4.0, 4.0)) == "not run"  # the program ran, and was discarded
    finally:
        step._specializing._fn = original
    assert program.assumed.misses == program_misses + 1
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert torch.equal(random, torch.jax.get_rng_state())
    with pytest.raises(KeyError):
        step(values(2.0, 3.0))
    step(values(1.0, 2.0))
    assert program.assumed.hits >= 2


def test_a_miss_draws_the_numbers_of_an_eager_call():
    f = library("def f(x):\n    return F.dropout(x, 0.5) * int(x.sum()) + torch.rand_like(x)")["f"]
    jitted = calque.jit(lambda x: f(x))
    results = []
    for run in (jitted, f):
        torch.manual_seed(5)
        torch.jax.manual_seed(5)
        results.append([plain(run(x)) for x in (FIRST, FIRST, SECOND * 2, FIRST, SECOND)])
    torch.testing.assert_close(*results)


def test_gradients_outside():
    source = "def f(x):\n    return (x[x > 0] ** 2).sum() * (2 if x.sum() > 3 else 3)"
    f = library(source)["f"]
    jitted = calque.jit(lambda x: f(x))
    for numbers in [(1.0, 2.0), (1.0, 2.0), (3.0, 1.0), (-1.0, 2.0), (1.0, -2.0), (2.0, -1.0)] * 2:
        x, y = values(*numbers).requires_grad_(), torch.tensor(numbers, requires_grad=True)
        jitted(x).backward()
        f(y).backward()
        assert x.grad.tolist() == y.grad.tolist()
    assert hits(jitted) > 2


def test_gradients_through_a_model():
    model = library(STEP)["Model"]().to("jax").eval()
    twin = copy.deepcopy(model)
    jitted = calque.jit(model)
    for batch in BATCHES * 2:
        x = torch.tensor(batch, device="jax")
        for one, run in ((model, jitted), (twin, twin)):
            one.zero_grad()
            run(x).square().sum().backward()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
    assert hits(jitted) > 2


def test_values_that_never_repeat_run_eagerly_with_one_warning():
    source = "def f(x):\n    return x * x.sum().item(), torch.compiler.is_compiling()"
    f = library(source)["f"]

    def user(x):
        return f(x)

    jitted = calque.jit(user)
    caught = warned(lambda: [jitted(values(i, 1.0)) for i in range(30)])
    assert re.search(r"user runs eagerly .*module_\d+.py:2 in f", str(caught[0].message))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert len(jitted.history) == 1
    assert "runs eagerly" in str(jitted.explain())
    assert plain(jitted(values(2.0, 1.0))) == [[6.0, 3.0], False]
    for wrong in (values(1.0), values(1.0)):  # a different signature starts over
        assert plain(jitted(wrong))[0] == [1.0]
    assert len(jitted.history) == 2


def test_two_values_in_turn_are_two_programs():
    f = library("def f(x):\n    return x * int(x.sum())")["f"]
    jitted = calque.jit(lambda x: f(x))
    inputs = [values(1.0, 2.0), values(3.0, 4.0)]
    for i in range(12):
        assert plain(jitted(inputs[i % 2])) == plain(f(inputs[i % 2]))
    assert len(jitted.history) == 2
    assert "another value of float32[] read as a Python number" in jitted.history[1]
    text = str(jitted.explain())
    assert "specialized: " in text
    assert "hits" in text
    assert "site-packages/somebodys" in text


def test_many_values_that_repeat_stay_within_the_bound():
    f = library("def f(x):\n    return x * int(x.sum())")["f"]
    jitted = calque.jit(lambda x: f(x))
    assert warned(lambda: agree(jitted, f, [values(i % 40, 2.0) for i in range(200)]))
    assert len(jitted.history) <= 9


def test_a_program_without_assumptions_is_not_touched():
    f = library("def f(x, training):\n    return x * int(x.sum()) if training else x")["f"]
    jitted = calque.jit(lambda x, training: f(x, training))
    for i in range(20):
        jitted(values(1.0), False)
        if i < 3:
            jitted(values(float(i)), True)
    programs = [known[0] for known in jitted.programs.values()]
    assert [p.assumed is None for p in programs] == [True, False]


def test_training_and_evaluation_of_one_model():
    source = """
class Model(nn.Module):
    def forward(self, x):
        return x * x.sum().item() if self.training else x + 1
"""
    model = library(source)["Model"]()
    jitted = calque.jit(model)
    assert warned(lambda: agree(jitted, model, [values(float(i)) for i in range(15)]))
    model.eval()
    assert plain(jitted(values(1.0))) == [[2.0]]
    assert len(jitted.history) == 2
    model.train()
    assert plain(jitted(values(3.0))) == [[9.0]]
    assert len(jitted.history) == 2


def test_a_library_cannot_swallow_the_signal():
    source = """
def f(x):
    try:
        return x * x.sum().item()
    except Exception:
        return x * 0
def g(x):
    try:
        return x * x.sum().item()
    except BaseException:
        return x * 0
def h(x):
    try:
        return x * x.sum().item()
    except BaseException:
        raise ValueError("no value")
"""
    names = library(source)
    for name in "fgh":
        jitted = calque.jit(lambda x, f=names[name]: f(x))
        for x in (FIRST, FIRST, FIRST, SECOND, SECOND):
            assert plain(jitted(x)) == plain(x * x.sum().item())
        assert hits(jitted) >= 2


def test_code_that_reads_otherwise_in_a_trace_runs_eagerly():
    source = """
def f(x):
    from calque.device.memory.cell import active
    return x * (x.sum() if active.trace is None else x.max().item())
"""
    f = library(source)["f"]
    jitted = calque.jit(lambda x: f(x))
    caught = warned(lambda: agree(jitted, lambda x: x * x.sum(), [FIRST] * 6))
    assert "other values while it is traced" in str(caught[0].message)
    assert not jitted.history


def test_random_numbers_of_the_cpu_run_eagerly():
    f = library("def f(x):\n    return x * torch.rand(2).to('jax')")["f"]
    jitted = calque.jit(lambda x: f(x))
    x = values(1.0, 1.0)
    torch.manual_seed(1)
    with pytest.warns(EagerWarning, match="draws random numbers") as caught:
        results = [plain(jitted(x)) for _ in range(4)]
    assert len(caught) == 1
    torch.manual_seed(1)
    assert results == [[torch.rand(2).tolist()] for _ in range(4)]
    with pytest.raises(calque.TraceError, match="draws random numbers"):
        calque.jit(lambda x: x * torch.rand(2).to("jax"))(x)


def test_code_that_asks_whether_it_is_compiled_takes_one_path():
    source = """
def f(x):
    if torch.compiler.is_compiling():
        return x * int(x.max())
    return x * int(x.max()) * int(x.sum() / x.sum())
"""
    f = library(source)["f"]
    jitted = calque.jit(lambda x: f(x))
    for _ in range(4):
        assert plain(jitted(FIRST)) == plain(FIRST * 2)
    assert hits(jitted) == 3
    assert not torch.compiler.is_compiling()


def test_a_jitted_function_in_another_is_part_of_it():
    f = library("def f(x):\n    return x * int(x.sum())")["f"]
    inner = calque.jit(lambda x: f(x) + 1)
    outer = calque.jit(lambda x: inner(x) * 2)
    for _ in range(4):
        assert plain(outer(FIRST)) == plain((f(FIRST) + 1) * 2)
    assert hits(outer) == 3
    assert not inner.programs
    assert plain(inner(FIRST)) == plain(f(FIRST) + 1)


def test_checks_are_looked_at_after_assumptions():
    f = library("def f(x, i):\n    return x[i] * int(x.sum())")["f"]
    jitted = calque.jit(lambda x, i: f(x, i), checks=True)
    good, bad = torch.tensor([0], device="jax"), torch.tensor([7], device="jax")
    for x in (FIRST, FIRST, SECOND, SECOND, FIRST):
        assert plain(jitted(x, good)) == plain(f(x, good))
        with pytest.raises(IndexError):
            jitted(x, bad)


def test_values_that_rounding_makes_another_settle():
    source = """
def f(x):
    y = (x.sin() * x.cos()).exp().softmax(0) @ x.tanh()
    return x * y.item(), x + (x / 3).std().item()
"""
    f = library(source)["f"]
    jitted = calque.jit(lambda x: f(x))
    x = torch.randn(1000, device="jax")
    for _ in range(8):
        for got, want in zip(jitted(x), f(x), strict=True):
            torch.testing.assert_close(got, want)
    assert hits(jitted) >= 5


def test_not_a_number_is_a_value_that_repeats():
    f = library("def f(x):\n    return x * x.sum().item()")["f"]
    jitted = calque.jit(lambda x: f(x))
    for _ in range(4):
        assert jitted(values(float("nan"), 1.0)).isnan().all()
    assert hits(jitted) == 3


def test_state_that_the_values_come_from():
    source = """
class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
    def forward(self, x):
        self.count += 1
        return x * (2 if self.count % 4 == 0 else 1)
"""
    model = library(source)["Counter"]().to("jax")
    jitted = calque.jit(model)
    results = [jitted(values(1.0)).item() for _ in range(20)]
    assert results == [2.0 if i % 4 == 0 else 1.0 for i in range(1, 21)]
    assert model.count.item() == 20
    assert hits(jitted) > 10


def test_gradients_are_clipped():
    model = nn.Linear(2, 1).to("jax")
    reference = copy.deepcopy(model).to("cpu")
    results = []
    for one, run in ((model, calque.jit), (reference, lambda f: f)):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        clip = torch.nn.utils.clip_grad_norm_

        def step(x, one=one, optimizer=optimizer, clip=clip):
            optimizer.zero_grad()
            loss = one(x).square().mean()
            loss.backward()
            clip(one.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()
            return loss.detach()

        step = run(step)
        x = torch.ones(3, 2, device=one.weight.device)
        results.append([step(x).item() for _ in range(5)])
    torch.testing.assert_close(*results)


def test_an_operator_whose_shape_only_its_kernel_knows():
    name = f"calque_test::above_{next(_files)}"
    torch.library.define(name, "(Tensor x, float least) -> Tensor")
    torch.library.impl(name, "CPU", lambda x, least: x.double()[x > least].contiguous())
    namespace, short = name.split("::")
    op = getattr(getattr(torch.ops, namespace), short)
    f = library("def f(op, x):\n    return op(x, 0.0) * 2")["f"]
    jitted = calque.jit(lambda x: f(op, x))
    with pytest.warns(FallbackWarning):
        jitted(FIRST)
    for numbers in [(1.0, 2.0), (1.0, 2.0), (3.0, 0.1), (-1.0, 2.0), (-1.0, 2.0), (-1.0, 5.0)]:
        got = jitted(values(*numbers))
        want = torch.tensor(numbers).double()
        assert got.dtype == torch.float64
        assert got.tolist() == (want[want > 0] * 2).tolist()
    assert hits(jitted) >= 3


def test_threads():
    f = library("def f(x):\n    return x * int(x.sum())")["f"]
    jitted = calque.jit(lambda x: f(x))
    failures: list[object] = []

    def work(number: float) -> None:
        x = values(number, 1.0)
        own = calque.jit(lambda x: f(x))
        try:
            for _ in range(6):
                want = [[number * int(number + 1), float(int(number + 1))]]
                assert plain(jitted(x)) == want
                assert plain(own(x)) == want
                assert plain(f(x)) == want
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert not torch.compiler.is_compiling()


def test_results_of_numpy_are_each_calls_own():
    f = library("def f(x):\n    return x.cpu().numpy(), x.tolist()")["f"]
    jitted = calque.jit(lambda x: f(x))
    for _ in range(4):
        array, numbers = jitted(values(1.0, 2.0))
        assert (array.tolist(), numbers) == ([1.0, 2.0], [1.0, 2.0])
        array[0] = numbers[0] = 7


def test_a_backward_outside_that_asks_for_its_gradients_values_runs_eagerly():
    source = """
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return g * 2 if g.sum() > 0 else g * 0
"""
    twice = library(source)["Twice"]
    jitted = calque.jit(lambda x: twice.apply(x * 1))

    found = []

    def run() -> None:
        for sign in (1.0, 1.0, -1.0):
            x = values(1.0, 2.0).requires_grad_()
            (jitted(x).sum() * sign).backward()
            found.append(x.grad.tolist())

    caught = warned(run)
    assert found == [[2.0, 2.0], [2.0, 2.0], [0.0, 0.0]]
    assert len(caught) == 1


def test_hooks_in_a_training_step():
    hook = library("def hook(g):\n    return g * (2 if g.abs().sum() > 0.5 else 1)")["hook"]
    results = []
    for device, run in (("jax", calque.jit), ("cpu", lambda f: f)):
        w = torch.tensor([1.0, -2.0], device=device, requires_grad=True)
        w.register_hook(hook)
        optimizer = torch.optim.SGD([w], lr=0.1)

        def step(w=w, optimizer=optimizer):
            optimizer.zero_grad()
            loss = w.square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = run(step)
        results.append([step().item() for _ in range(12)])
    torch.testing.assert_close(*results)


def test_a_scaler_of_losses():
    results = []
    for device, run in (("jax", calque.jit), ("cpu", lambda f: f)):
        w = torch.tensor([1.0, -2.0], device=device, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=16.0, growth_interval=3)

        def step(x, w=w, optimizer=optimizer, scaler=scaler):
            optimizer.zero_grad()
            loss = (w * x).square().sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        step = run(step)
        factors = [1.0] * 4 + [float("inf")] + [1.0] * 4
        inputs = [torch.full((2,), factor, device=device) for factor in factors]
        results.append([n for x in inputs for n in (step(x).item(), scaler.get_scale())])
        if device == "jax":
            assert hits(step) >= 5
            assert len(step.history) == 1
    assert results[0] == pytest.approx(results[1])


def test_an_object_of_a_library_is_left_as_it_was():
    source = """
class Cache:
    def __init__(self):
        self.rows, self.count = [], 0
    def add(self, x):
        self.rows.append(x * 2)
        self.count += int(x.sum())
        return torch.cat(self.rows)
"""
    names = library(source)
    cache = names["Cache"]()
    results = [plain(calque.jit(lambda x: cache.add(x))(values(float(i)))) for i in range(3)]
    assert results == [[[0.0]], [[0.0, 2.0]], [[0.0, 2.0, 4.0]]]
    assert cache.count == 3
    with pytest.raises(calque.TraceError):
        calque.jit(lambda x: cache.add(x), specialize=False)(values(1.0))
    assert len(cache.rows) == 3


def _counting(x, weight, state):
    if x.sum() > 0:
        x = x * 2
    if (x * (state.step + 1)).sum() > 0:  # depends on a number
        x = x + state.step
    state.step += 1
    state.rate = 0.1 / (1 + state.step)
    state.positive += int((x > 0).sum())
    return (x * state.rate * weight).sum(), state.step


@pytest.mark.parametrize("weights", [[0.5], [0.5, 1.5, 2.5]], ids=["one weight", "weights"])
def test_numbers_that_change_beside_assumed_values(weights):
    """Neither changing numbers in the state nor among the arguments cause a trace at each call."""
    results = []
    for device in ("jax", "cpu"):
        state = types.SimpleNamespace(step=0, rate=1.0, positive=0)
        found = []

        def step(x, weight, state=state):
            return _counting(x, weight, state)

        run = calque.jit(step, specialize=True) if device == "jax" else step
        for i in range(12):
            sign = -1.0 if i in (6, 7, 10) else 1.0
            x = torch.tensor([1.0, 2.0], device=device) * sign
            total, count = run(x, weights[i % len(weights)])
            found += [total.item(), count, state.step, state.rate, state.positive]
        results.append(found)
        if device == "jax":
            assert hits(run) >= 5
            assert len(run.history) <= 3
    assert results[0] == pytest.approx(results[1])
    assert list(map(type, results[0])) == list(map(type, results[1]))


def test_a_counting_metric_of_a_library_is_traced_once():
    source = """
class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("most", torch.tensor(-9.0))
        self._count = 0
    def update(self, x):
        self._count += 1
        if torch.isnan(x).any():
            raise ValueError("nan")
        if x.numel() and bool((x > -9).all()):
            self.most = torch.max(self.most, x.max())
"""
    metric = library(source)["Metric"]().to("jax")
    update = calque.jit(lambda x: metric.update(x))
    for i in range(6):
        update(values(float(i), 1.0))
        assert (metric._count, metric.most.item()) == (i + 1, max(i, 1))
    assert len(update.history) <= 2
