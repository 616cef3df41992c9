"""What cannot be traced is one short error that changes nothing; the user's own errors pass."""

import copy
import functools
import io
import traceback
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import calque
from calque import TraceError
from calque.jitting import known_tensors
from calque.jitting.verification import Repeating


def ones(*shape):
    return torch.ones(*shape, device="jax")


def branch(x):
    if x.sum() > 3:
        return x
    return -x


def asserting(x):
    assert (x > 0).all()
    return x


DEPENDENT = {
    "if": branch,
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0, 0]),
    "int": lambda x: int(x[0, 0]),
    "bool": lambda x: bool(x[0, 0]),
    "while": lambda x: [1 for _ in range(int(x.sum()))],
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.cpu().numpy(),
    "format": lambda x: f"{x.sum():.3f}",
    "nonzero": lambda x: len(x.nonzero()),
    "mask": lambda x: x[x > 0],
    "unique": lambda x: torch.unique(x),
    "assert": asserting,
    "index": lambda x: [1, 2, 3][x.long()[0, 0]],
    "contains": lambda x: 1.0 in x,
    "iteration": lambda x: max(x[0]),
    "equal": lambda x: torch.equal(x, x + 1),
    "masked_select": lambda x: x.masked_select(x > 0),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()[0], 0),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_needing_a_value_is_one_short_error(name):
    function = DEPENDENT[name]
    run = calque.jit(function)
    with pytest.raises(calque.TraceError) as caught:
        run(ones(2, 2))
    text = str(caught.value)
    line = function.__code__.co_firstlineno
    assert any(f"{__file__}:{line + i} in " in text for i in range(3)), text
    assert "shape (" in text or "[2, 2]" in text or "32[4]" in text or "int64[2]" in text, text
    assert "float32" in text or "bool" in text or "int64" in text, text
    assert len(text.splitlines()) == 2
    printed = "".join(traceback.format_exception(caught.value)).splitlines()
    assert len(printed) <= 12, printed
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert set(files) == {__file__}
    assert len(files) <= 2
    assert caught.value.__cause__ is None


def test_a_traced_tensor_is_printed_as_one(capsys):
    @calque.jit
    def show(x):
        y = x * 2
        print(y, f"{y.sum()}", repr(x))
        return y

    assert show(ones(2)).tolist() == [2, 2]
    shown = capsys.readouterr().out
    assert shown.count("traced by calque.jit") == 3
    assert "tensor(shape=(2,), dtype=torch.float32, device='jax:0'" in shown
    assert f"{ones(1)}" == "tensor([1.], device='jax:0')"
    assert f"{ones(1)[0]}" == "1.0"


def test_text_of_a_traced_tensor_that_decides_is_refused():
    def scale(x):
        text = f"loss {x} at step 3"
        return x * 2 if "1.0" in text else x * 3

    with pytest.raises(calque.TraceError, match="in scale: the text of a tensor is read"):
        calque.jit(scale)(ones(2))


def in_a_closure(x):
    text = f"loss {x} at step 3"
    return x * (lambda: len(text))()


def of_an_exception(x):
    try:
        raise ValueError(f"loss {x}")
    except ValueError as error:
        return x * len(str(error))


def as_keys(x):
    return x * len({f"loss {x}", f"loss {x * 2}"})


def of_a_stream(x):
    stream = io.StringIO()
    print("loss", x, file=stream)
    return x * len(stream.getvalue())


def of_how_many_lines(x):
    n = 0
    for line in f"loss\n{x}".splitlines():
        n += isinstance(line, str)
    return x * n


@pytest.mark.parametrize(
    "reads", [in_a_closure, of_an_exception, as_keys, of_a_stream, of_how_many_lines]
)
def test_text_that_decides_where_no_bytecode_tells_is_refused_at_the_second_call(reads):
    run = calque.jit(reads)
    run(ones(2))
    for _ in range(2):
        with pytest.raises(calque.TraceError, match="the text of a tensor is read"):
            run(ones(2))


def test_text_that_is_only_shown_leaves_the_program_as_it_is(capsys):
    @calque.jit
    def show(x):
        text = f"loss {x} at step 3"
        print(text, "-" * len(text) if isinstance(text, str) else "")
        return x * 2

    assert [show(ones(2)).tolist() for _ in range(3)] == [[2, 2]] * 3
    assert capsys.readouterr().out.count("traced by calque.jit") == 2
    assert show.history == ["first call"]


REMEDIES = {
    "if": "in place of the `if`",
    "item": "return it",
    "tolist": "call .tolist()",
    "numpy": "call .cpu()",
    "format": "print or log it outside",
    "mask": "torch.where(mask, x, 0)",
}


@pytest.mark.parametrize("name", REMEDIES)
def test_each_look_at_a_value_has_its_own_remedy(name):
    with pytest.raises(calque.TraceError) as caught:
        calque.jit(DEPENDENT[name])(ones(2, 2))
    assert REMEDIES[name] in str(caught.value)


def test_a_loop_is_written_as_a_while_loop():
    @calque.jit
    def grow(x):
        while x.sum() < 100:
            x = x * 2
        return x

    with pytest.raises(calque.TraceError, match="torch.while_loop") as caught:
        grow(ones(3))
    assert "x, = torch.while_loop(lambda x: x.sum() < 100, body, (x,))" in str(caught.value)


def test_an_error_in_a_layer_names_the_layer():
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Linear(4, 1))).to("jax")
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        calque.jit(model)(ones(1, 2))
    assert caught.value.__notes__ == [
        "in layer 1.1 of Sequential: Linear(in_features=4, out_features=1, bias=True)"
    ]


def test_the_users_own_errors_pass_with_the_users_frames():
    def helper(x):
        return {}["missing"]

    run = calque.jit(lambda x: helper(x))
    with pytest.raises(KeyError, match="missing") as caught:
        run(ones(1))
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-2:] == ["<lambda>", "helper"]
    assert "__call__" not in names
    assert not getattr(caught.value, "__notes__", [])
    with pytest.raises(RuntimeError, match=r"shape|size|broadcast"):
        calque.jit(lambda x: x @ ones(5, 5))(ones(2, 2))
    with pytest.raises(IndexError):
        calque.jit(lambda x: x.sum(7))(ones(2, 2))


def test_causes_of_the_users_errors_are_kept():
    def fail():
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    with pytest.raises(ValueError, match="outer") as caught:
        calque.jit(fail)()
    assert isinstance(caught.value.__cause__, KeyError)

    def fail_from_what_nobody_raised():
        raise ValueError("outer") from KeyError("named")

    with pytest.raises(ValueError, match="outer") as caught:
        calque.jit(fail_from_what_nobody_raised)()
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_full_traceback_on_request(monkeypatch):
    monkeypatch.setenv("CALQUE_TRACEBACK", "full")
    with pytest.raises(calque.TraceError) as caught:
        calque.jit(branch)(ones(2))
    assert len(traceback.extract_tb(caught.value.__traceback__)) > 5


@pytest.mark.parametrize("data", [torch.tensor(True, device="jax"), ones(2)])
def test_data_of_another_form_is_refused(data):
    buffer = torch.tensor(3, device="jax")

    @calque.jit
    def step(x):
        buffer.data = data.clone()
        return x

    with pytest.raises(TraceError, match=f"(?s)int64 from outside .* {data.dtype},.*Replace it"):
        step(ones(2))
    assert buffer.tolist() == 3


@pytest.mark.parametrize("most", [None, 128])
@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
def test_a_cache_keeps_its_entries_from_before_a_trace_that_is_given_up(most):
    @functools.lru_cache(maxsize=most)
    def table(n):
        return torch.arange(n, device="jax") * 1.0

    box, first, fail = {"n": 0}, table(5), True

    def count():
        return box["n"]

    @calque.jit
    def step(x, given):
        given["n"] += 1  # also a variable: the trace is repeated
        y = x * table(len(x)) * count()
        if fail:
            raise KeyError("no")
        return y

    with pytest.raises(KeyError):
        step(ones(3), box)
    assert box["n"] == 0
    assert table(5) is first
    assert table(3).tolist() == [0, 1, 2]
    fail = False
    table.cache_clear()
    first = table(5)
    assert [step(ones(3), box).tolist()[1] for _ in range(4)] == [1, 2, 3, 4]
    assert table(5) is first
    assert table(3).tolist() == [0, 1, 2]


def test_an_error_in_a_trace_changes_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).to("jax")
    model.note = "before"
    model.history = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = ones(4, 2)
    fail = True
    total = ones(1)

    @calque.jit
    def step(x):
        nonlocal total
        total = total + 1
        model.note = "after"
        model.history.append(1)
        model.cache = x * 2
        model[0].weight.data = model[0].weight.data * 2
        model[0].bias.requires_grad_(False)
        model[2].p = 0.1
        torch.rand(2, device="jax")
        x.mul_(2)
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        if fail:
            raise KeyError("no")
        model[0].bias.requires_grad_(True)
        return loss

    before = copy.deepcopy(model.state_dict())
    first = total
    seeds = torch.get_rng_state(), torch.jax.get_rng_state()
    for _ in range(2):
        with pytest.raises(KeyError):
            step(x)
        for key, value in model.state_dict().items():
            assert torch.equal(value, before[key]), key
        assert x.tolist() == [[1, 1]] * 4
        assert all(p.grad is None for p in model.parameters())
        assert model[0].bias.requires_grad
        assert not optimizer.state
        assert optimizer.param_groups[0]["lr"] == 0.1
        assert optimizer.param_groups[0]["capturable"] is False
        assert (model.note, model.history, model[2].p) == ("before", [], 0.5)
        assert not hasattr(model, "cache")
        assert total is first
        assert torch.equal(torch.get_rng_state(), seeds[0])
        assert torch.equal(torch.jax.get_rng_state(), seeds[1])
    fail = False
    assert torch.isfinite(step(x)).item()
    assert model.note == "after"
    assert total.item() == 2
    assert x.tolist() == [[2, 2]] * 4


def test_an_optimizer_after_an_error_trains_as_eager():
    w = ones(2).requires_grad_()
    optimizer = torch.optim.Adam([w], lr=0.1)
    with pytest.raises(calque.TraceError):
        calque.jit(lambda: (w.sum().backward(), optimizer.step(), w.sum().item()))()
    reference = torch.ones(2, requires_grad=True)
    other = torch.optim.Adam([reference], lr=0.1)
    for _ in range(2):
        for p, o in ((w, optimizer), (reference, other)):
            p.sum().backward()
            o.step()
            o.zero_grad()
    torch.testing.assert_close(w.detach().cpu(), reference.detach())


def test_many_traces_are_reported():
    run = calque.jit(lambda x, n: x * len(f"{n:x<30}{n}"[: n + 30]))
    with pytest.warns(calque.RetraceWarning) as said:
        list(map(partial(run, ones(1)), range(17)))
    assert [str(one.message).split(" times")[0][-2:].strip() for one in said] == ["4", "16"]
    assert "needs the value of one of these numbers, which has changed: n" in str(said[0].message)
    assert "Pass the number as a tensor" in str(said[0].message)
    assert said[0].filename == __file__
    text = str(run.explain())
    assert "17 traces" in text
    assert len(text.splitlines()) < 100


def test_other_shapes_are_to_be_padded():
    run = calque.jit(lambda x: x * 2)
    with pytest.warns(calque.RetraceWarning, match="Pad the tensor to a few sizes"):
        list(map(run, map(ones, range(1, 6))))


def test_a_model_left_on_the_cpu_is_told_at_its_second_trace():
    run = calque.jit(nn.Linear(2, 2))
    run(torch.ones(1, 2))
    with pytest.warns(calque.RetraceWarning, match=r'model.to\("jax"\)') as said:
        list(map(run, torch.arange(12.0).view(6, 1, 2)))
    assert len(said) == 1


def test_the_reason_of_every_trace_is_told():
    model = nn.Dropout(0.5).to("jax")
    run = calque.jit(lambda x, n: model(x) * n)
    run(ones(2), 1)
    run(ones(3), 1)
    run(ones(3), 2)
    model.eval()
    run(ones(3), 2)
    model.p = 0.1
    run(ones(3), 2)
    assert "shape" in run.history[1]
    assert run.history[2] == "argument 1 was 1 and is 2"
    assert "model.training was True and is False" in run.history[3]
    assert "model.p was 0.5 and is 0.1" in run.history[4]


def test_a_new_trace_names_the_values_of_numpys_numbers():
    run = calque.jit(lambda x, pair: x * pair[0])
    x = torch.ones(2, device="jax")
    for number in (np.float32(0.5), np.float32(1.5)):
        run(x, (number, np.ones(3)))
    assert run.history[1] == "argument 1 was float32(0.5) and is float32(1.5)"
    run(x, (number, np.ones(4)))
    assert run.history[2] == (
        "argument 2 was a NumPy array of shape (3,) and dtype float64 and is a NumPy array of "
        "shape (4,) and dtype float64"
    )


def test_the_loss_of_a_step_says_that_its_graph_is_freed():
    model = nn.Linear(3, 2).to("jax")

    @calque.jit
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss

    loss = step(ones(2, 3))
    assert repr(loss).endswith("grad_fn=<FreedBackward>)")
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


_KEPT: list[str] = []


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * 2 if "1." in repr(x) else x * 3,
        lambda x: x * len(f"{x}"),
        lambda x: x * len("x: " + str(x).strip()),
        lambda x: x if str(x) == "tensor([1., 1.])" else x + 1,
        lambda x: {repr(x): x}[repr(x)],
    ],
)
def test_text_of_a_traced_tensor_must_not_be_read(fn):
    with pytest.raises(TraceError, match=r"test_jit_errors.py:\d+ in .*text of a tensor is read"):
        calque.jit(fn)(ones(2))


@pytest.mark.parametrize(
    "fn", [lambda x: (x, f"loss {x}"), lambda x: _KEPT.append(f"{x}, {x * 2}"), lambda x: [str(x)]]
)
def test_text_of_a_traced_tensor_must_not_outlive_the_trace(fn):
    with pytest.raises(TraceError, match=r"test_jit_errors.py:\d+ in .*outlives"):
        calque.jit(fn)(ones(2))
    assert not _KEPT


class Failure(Exception):
    pass


@pytest.mark.parametrize("registered", ["hook", "late hook", "hook and removed"])
@pytest.mark.parametrize("others", [0, 1])
def test_an_error_after_a_hook_arrives_and_the_hook_is_taken_off(registered, others):
    w = torch.ones(2, device="jax", requires_grad=True)
    x = torch.tensor([1.0, 2.0], device="jax")
    for _ in range(others):
        w.register_hook(lambda gradient: gradient * 3)
    before = w._backward_hooks, dict(w._backward_hooks or {})

    def step(x):
        if registered == "late hook":
            w.register_post_accumulate_grad_hook(lambda leaf: None)
        else:
            handle = w.register_hook(lambda gradient: gradient * 5)
            if registered == "hook and removed":
                handle.remove()
        (w * x).sum().backward()
        raise Failure

    with pytest.raises(Failure) as caught:
        calque.jit(step)(x)
    assert not any("was advanced" in note for note in caught.value.__notes__)
    assert (w._backward_hooks, dict(w._backward_hooks or {})) == before
    assert w._backward_hooks is before[0] and w._post_accumulate_grad_hooks is None
    assert w.grad is None
    (w * x).sum().backward()
    assert w.grad.tolist() == [3**others, 2 * 3**others]
    w.register_hook(lambda gradient: gradient + 1)
    w.grad = None
    (w * x).sum().backward()
    assert w.grad.tolist() == [3**others + 1, 2 * 3**others + 1]


@pytest.mark.parametrize("error", [Failure, KeyboardInterrupt])
def test_an_error_of_the_program_arrives_though_an_iterator_has_moved_on(error):
    batches = iter([1, 2, 3])

    def step(x):
        next(batches)
        raise error("mine")

    with pytest.raises(error, match="mine") as caught:
        calque.jit(step)(torch.ones(2, device="jax"))
    assert any("batches was advanced" in note for note in caught.value.__notes__)
    assert list(batches) == [2, 3]


def test_an_interrupt_arrives_while_a_trace_takes_note_of_a_tensor(monkeypatch):
    weights = [torch.ones(2, device="jax", requires_grad=True) for _ in range(2)]
    references, last = list(map(weakref.ref, weights)), object()
    real, left = known_tensors.cell_of, []

    def interrupted(tensor):
        if left and left.pop() is last:
            raise KeyboardInterrupt
        return real(tensor)

    def step(x):
        hidden = [w() for w in references]  # reached only through weak references
        (x * hidden[0] * hidden[1]).sum().backward()

    monkeypatch.setattr(known_tensors, "cell_of", interrupted)
    for number in (1, 2):
        left[:] = [last] + [None] * (number - 1)
        with pytest.raises(KeyboardInterrupt):
            calque.jit(step)(ones(2))
        assert [w.grad for w in weights] == [None, None]
    calque.jit(step)(ones(2))
    assert [w.grad.tolist() for w in weights] == [[1, 1], [1, 1]]


def test_an_interrupt_after_a_trace_leaves_a_function_that_can_be_called(monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    doubled = calque.jit(lambda x: x * 2)
    with monkeypatch.context() as patched:
        patched.setattr(Repeating, "made", interrupted)
        with pytest.raises(KeyboardInterrupt):
            doubled(ones(2))
    assert doubled(ones(2)).tolist() == [2, 2]
    assert doubled.history == ["first call"]


def test_an_error_with_a_traced_tensor_or_its_text_can_be_read_afterwards():
    outside = torch.ones(2, device="jax")

    @calque.jit
    def run(x, how):
        y = x * 2
        if how == "key":
            {}[y]
        if how == "text":
            raise ValueError(f"bad value {y}")
        raise ValueError("given", x, outside)

    x = torch.ones(2, device="jax")
    with pytest.raises(KeyError) as key:
        run(x, "key")
    assert "traced tensor of shape (2,)" in str(key.value)
    with pytest.raises(ValueError) as text:
        run(x, "text")
    assert "bad value" in str(text.value)
    with pytest.raises(ValueError) as given:
        run(x, "given")
    assert given.value.args[1] is x and given.value.args[2] is outside


@pytest.mark.parametrize(
    "use", [torch.Tensor.item, lambda loss: loss + 1], ids=["read", "computed"]
)
def test_a_tensor_that_an_error_holds_says_that_it_must_be_returned(use):
    @calque.jit
    def run(x):
        error = ValueError("the loss is too high")
        error.loss = x.sum()
        raise error

    with pytest.raises(ValueError, match="too high") as raised:
        run(torch.ones(2, device="jax"))
    with pytest.raises(calque.TraceError, match="return the tensor instead of raising it"):
        use(raised.value.loss)
