"""CPU tensors, threads and memory around jitted functions."""

import copy
import csv
import io
import threading

import numpy as np
import pytest
import torch
from torch import nn

import calque


def ones(*shape):
    return torch.ones(*shape, device="jax")


def test_cpu_tensors_made_inside_are_constants():
    @calque.jit
    def run(x):
        table = torch.arange(3.0) * 2
        scale = torch.tensor(3.0)
        return x * table.to("jax") * scale + torch.tensor([1.0, 2.0, 3.0], device="jax")

    for _ in range(2):
        assert run(ones(3)).tolist() == [1, 8, 15]


def test_cpu_tensors_from_outside_are_read_at_each_call():
    table = torch.ones(3)
    run = calque.jit(lambda x: x * table.to("jax"))
    assert run(ones(3)).tolist() == [1, 1, 1]
    table.mul_(5)
    assert run(ones(3)).tolist() == [5, 5, 5]
    assert len(run.history) == 1


def test_cpu_arguments_are_read_at_each_call():
    run = calque.jit(lambda x, t: x * t.to("jax"))
    assert run(ones(2), torch.ones(2)).tolist() == [1, 1]
    assert run(ones(2), torch.ones(2) * 5).tolist() == [5, 5]
    base = torch.arange(6.0)
    assert run(ones(2), base[2:4]).tolist() == [2, 3]
    assert run(ones(2), base[4:]).tolist() == [4, 5]
    assert len(run.history) == 1


def test_a_cpu_argument_that_is_also_a_variable():
    table = torch.ones(2)
    run = calque.jit(lambda t: t.to("jax") * 10 + table.to("jax"))
    assert run(table).tolist() == [11, 11]
    assert run(torch.ones(2) * 5).tolist() == [51, 51]
    table.fill_(2)
    assert run(table).tolist() == [22, 22]
    twice = calque.jit(lambda a, b: a.to("jax") * 10 + b.to("jax"))
    assert twice(table, table).tolist() == [22, 22]
    assert twice(table, torch.ones(2)).tolist() == [21, 21]


def test_zeros_of_cpu_tensors_have_signs():
    table = torch.zeros(2)
    run = calque.jit(lambda x: x * float(torch.atan2(table, torch.tensor(-1.0))[0]))
    for zero in (0.0, -0.0, 0.0):
        table.fill_(zero)
        expected = torch.atan2(torch.tensor(zero), torch.tensor(-1.0))
        assert run(ones(1)).tolist() == [expected.item()]
    assert len(run.history) == 2


def test_nan_in_a_cpu_tensor_is_no_change():
    table = torch.tensor([float("nan"), 2.0])
    run = calque.jit(lambda x: x * table.nansum().item())
    for _ in range(4):
        assert run(ones(1)).tolist() == [2]
    assert len(run.history) <= 2


def test_cpu_arguments_that_the_function_computes_with():
    run = calque.jit(lambda x, t: x * (t + 1).to("jax") if t.sum() > 0 else x)
    assert run(ones(2), torch.ones(2)).tolist() == [2, 2]
    assert run(ones(2), torch.ones(2) * 5).tolist() == [6, 6]
    assert run(ones(2), -torch.ones(2)).tolist() == [1, 1]


def test_scalars_on_the_cpu():
    s = torch.tensor(2.0)
    run = calque.jit(lambda x: x * s)
    assert run(ones(2)).tolist() == [2, 2]
    s.fill_(7)
    assert run(ones(2)).tolist() == [7, 7]
    assert calque.jit(lambda x, s: x + s)(ones(2), torch.tensor(4.0)).tolist() == [5, 5]
    taken = calque.jit(lambda x, s: x + s.item())
    assert taken(ones(2), torch.tensor(4.0)).tolist() == [5, 5]
    assert taken(ones(2), torch.tensor(6.0)).tolist() == [7, 7]


def test_a_cpu_tensor_that_is_computed_with_is_guarded():
    lengths = torch.tensor([1, 2])
    run = calque.jit(lambda x: x * int(lengths.max()))
    assert run(ones(1)).item() == 2
    lengths[1] = 9
    assert run(ones(1)).item() == 9
    assert "CPU tensor" in run.history[1]


def test_writing_and_drawing_on_the_cpu_are_errors():
    outside = torch.zeros(2)
    with pytest.raises(calque.TraceError, match="writes to a CPU tensor"):
        calque.jit(lambda: outside.add_(1))()
    assert outside.tolist() == [0, 0]
    with pytest.raises(calque.TraceError, match="random"):
        calque.jit(lambda: torch.rand(2).to("jax"))()
    with pytest.raises(calque.TraceError, match="random"):
        calque.jit(lambda: nn.init.normal_(torch.empty(2)).to("jax"))()


def test_cpu_results():
    outside = torch.ones(2)
    run = calque.jit(lambda x: (torch.arange(2) + 1, outside, x.shape))
    first, second = run(ones(1)), run(ones(1))
    assert first[0].tolist() == second[0].tolist() == [1, 2]
    first[0].zero_()
    assert run(ones(1))[0].tolist() == [1, 2]
    assert second[1] is outside
    assert first[2] == (1,)


def test_numpy_state_is_a_constant_by_value():
    weights = np.array([1.0, 2.0], np.float32)
    run = calque.jit(lambda x: x * torch.from_numpy(weights).to("jax"))
    assert run(ones(2)).tolist() == [1, 2]


def test_two_threads_train_two_models():
    def work(seed, results):
        model = nn.Linear(3, 3, bias=False).to("jax")
        with torch.no_grad():
            model.weight.fill_(float(seed))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

        @calque.jit
        def step(x):
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        results[seed] = [step(ones(1, 3)).item() for _ in range(5)]

    results: dict[int, list[float]] = {}
    threads = [threading.Thread(target=work, args=(i, results)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: [9 * (i - k) for k in range(5)] for i in range(3)}


def test_one_function_called_by_many_threads():
    total = ones(1)
    run = calque.jit(lambda x: (total.add_(x), None)[1])
    threads = [threading.Thread(target=lambda: [run(ones(1)) for _ in range(5)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total.item() == 21


def test_a_thread_runs_eagerly_while_another_traces():
    tracing, done = threading.Event(), threading.Event()
    seen = []

    def eager():
        tracing.wait(10)
        a = ones(3)
        a += 1
        seen.append(a.sum().item())
        torch.manual_seed(3)
        done.set()

    thread = threading.Thread(target=eager)
    thread.start()

    @calque.jit
    def run(x):
        tracing.set()
        assert done.wait(10)
        return x + 1

    assert run(ones(1)).item() == 2
    thread.join()
    assert seen == [6]


def test_a_function_that_retraces_keeps_few_programs():
    run = calque.jit(lambda x: x * w)
    for i in range(12):
        w = ones(2) * i
        assert run(ones(2)).tolist() == [i, i]
    assert len(run.explain().programs) <= 8
    assert run.compilations == 1


def test_code_that_asks_is_told_that_it_is_compiled():
    def step(x):
        if not torch.compiler.is_compiling() and x.isnan().any():
            raise ValueError
        return x * 2

    assert calque.jit(step)(torch.ones(2, device="jax")).tolist() == [2, 2]
    assert not torch.compiler.is_compiling()
    with pytest.raises(calque.TraceError):
        calque.jit(lambda x: x.item())(torch.ones(1, device="jax"))
    assert not torch.compiler.is_compiling()


def test_distributions_do_not_look_at_values_unless_asked(monkeypatch):
    # torch.compile turns it off for the whole process.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    x = torch.tensor([0.5, 1.0], device="jax")

    @calque.jit
    def run(logits, **settings):
        return torch.distributions.Categorical(logits=logits, **settings).entropy()

    want = torch.distributions.Categorical(logits=x.cpu()).entropy()
    torch.testing.assert_close(run(x).cpu(), want)

    @calque.jit(checks=True)
    def asked(logits):
        return torch.distributions.Categorical(logits=logits, validate_args=True).entropy()

    torch.testing.assert_close(asked(x).cpu(), want)
    # Depending on PyTorch's release, its code reads it in a branch or in a separate function.
    with pytest.raises((RuntimeError, ValueError), match=r"does not hold: if not|invalid values"):
        asked(x * float("nan"))
    with pytest.raises(ValueError, match="invalid values"):
        torch.distributions.Categorical(logits=x * float("nan"))


def test_code_of_a_distribution_may_read_whether_it_validates(monkeypatch):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

    class Positive(torch.distributions.Normal):
        def log_prob(self, value):
            if self._validate_args:
                self._validate_sample(value)
            return super().log_prob(value)

    @calque.jit
    def run(x):
        return Positive(x, 1.0).log_prob(x)

    for _ in range(3):
        run(torch.ones(2, device="jax"))
    assert run.compilations == 1


WRITES = {
    "item": lambda c: c.__setitem__(0, 5.0),
    "view": lambda c: c[:1].add_(1),
    "detached": lambda c: c.detach().add_(1),
    "data": lambda c: c.data.mul_(2),
    "numpy": lambda c: c.numpy().__setitem__(0, 5.0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_write_into_a_part_of_a_cpu_tensor_from_outside_is_refused(write):
    counts = torch.ones(3)

    def step(x):
        write(counts)
        return x * 2

    with pytest.raises(calque.TraceError, match=r"test_jit_host.py:\d+ in .*CPU tensor of shape"):
        calque.jit(step)(torch.ones(2, device="jax"))


def test_cpu_memory_made_in_the_call_may_be_written_through_any_tensor():
    def step(x):
        weight = torch.nn.Parameter(torch.empty(4))
        torch.nn.init.ones_(weight)
        table = torch.zeros(4)
        table[1:] += 2
        table.data[0] = 1
        literal = torch.tensor([1.0, 2, 3, 4])
        literal[0] = 5
        return x * (weight.detach() + table + literal).to(x.device)

    run = calque.jit(step)
    for number in (1.0, 2.0):
        x = torch.full((4,), number)
        assert run(x.to("jax")).tolist() == step(x).tolist()


def test_copies_of_cpu_tensors_are_made_at_each_call_of_their_values():
    base, config = torch.arange(4.0), {"w": torch.ones(2), "n": 2}
    pair = [base[:2], base[2:]]

    @calque.jit
    def f(x, given):
        own = copy.deepcopy(config)
        own["w"] += 1  # the copy's own
        a, b = copy.deepcopy(pair)  # the two share a storage
        total = copy.copy(given).sum().item() + copy.deepcopy(given).sum().item()
        return x * own["n"] + (own["w"] + a + b).to("jax") + total, own["w"]

    for i in range(5):
        base[3] = 5.0 if i > 1 else 3.0
        config["w"][0] = 7.0 if i > 2 else 1.0
        given = torch.full((2,), 4.0 if i > 3 else 2.0)
        result, kept = f(torch.ones(2, device="jax"), given)
        expected = 2 + config["w"] + 1 + base[:2] + base[2:] + 2 * given.sum()
        assert torch.equal(result.cpu(), expected)
        assert torch.equal(kept, config["w"] + 1)
        assert len(f.history) == max(1, i)


def test_cpu_results_share_memory_as_in_the_function():
    log, parts = [], []
    outside, array = torch.ones(3), np.ones(3)

    @calque.jit
    def call(x, given):
        t = torch.zeros(2, 2)
        a = t.numpy()
        b = np.zeros(3)
        log.append(t)
        parts.append(t[1])
        rest = (nn.Parameter(t), b, b[::-1], outside[1:], array[1:], given[1:])
        return x * 2, a, a.T, t.expand(2, 2, 2), *rest

    for i in range(1, 4):
        given = torch.ones(2)
        _, a, turned, wide, parameter, b, back, part, piece, own = call(ones(1), given)
        log[-1][1, 0] = i
        assert parts[-1].tolist() == [i, 0]
        assert a[1, 0] == turned[0, 1] == wide[1, 1, 0] == parameter[1, 0] == i
        assert wide.stride() == (0, 2, 1)
        b[0], part[0], piece[0], own[0] = i, i, i, i
        assert back[2] == outside[1] == array[1] == given[1] == i
        outside[1] = array[1] = 1
    assert [t[1, 0].item() for t in log] == [1, 2, 3]
    assert len(call.history) == 1


def test_arrays_and_tensors_over_their_memory_share_it_in_each_call():
    @calque.jit
    def call(x):
        array, tensor = np.arange(6.0), torch.arange(6.0)
        over_array, of_tensor = torch.from_numpy(array), tensor.numpy()
        part = torch.from_numpy(of_tensor[3:])
        return x * 2, over_array[1:], array, array[2:], part, tensor, of_tensor

    for i in range(1, 4):
        _, over_array, array, rest, part, tensor, of_tensor = call(ones(1))
        array[3] = tensor[4] = -i
        assert over_array[2] == rest[1] == part[1] == of_tensor[4] == -i
        assert array.tolist() == [0, 1, 2, -i, 4, 5]
        over_array[0] = -2 * i
        assert array[1] == -2 * i
    assert len(call.history) == 1


def test_views_of_memory_from_outside_share_it():
    whole = np.arange(8.0)
    array, tensor = whole[2:], torch.arange(4.0)
    scattered = np.arange(8.0)[::2]

    @calque.jit
    def call(x):
        return (
            x * 2,
            array[1:],
            torch.from_numpy(array)[2:],
            tensor.numpy()[1:],
            array,
            scattered[1:],
        )

    for i in range(3):
        _, part, over, of_tensor, same, others = call(ones(1))
        assert same is array
        part[0] = over[0] = of_tensor[0] = others[0] = -i
        assert whole[3] == whole[4] == tensor[1] == scattered[1] == -i


def test_arrays_of_each_layout_are_created_by_each_call():
    @calque.jit
    def call(x):
        turned = np.arange(24.0).reshape(2, 3, 4).transpose(1, 0, 2).copy(order="K")
        fixed = np.arange(2.0)
        fixed.flags.writeable = False
        return x * 2, turned, turned[1:], fixed, np.ma.array([1.0, 2.0], mask=[False, True])

    for i in range(1, 4):
        _, turned, part, fixed, masked = call(ones(1))
        assert (turned.strides, part.strides) == ((32, 96, 8), (32, 96, 8))
        assert part[0, 0].tolist() == [4, 5, 6, 7]
        turned[1, 0] = i
        assert part[0, 0].tolist() == [i] * 4
        assert not fixed.flags.writeable
        assert masked.tolist() == [1.0, None]
        masked[0] = i + 1
    assert len(call.history) == 1


def test_numpy_memory_that_the_function_writes_before_it_is_moved_is_refused():
    """The program would take the values from before the call."""
    kept = np.ones(2, np.float32)

    def of_state(x, given):
        kept[0] += 1
        return x * torch.from_numpy(kept).to(x.device)

    def of_argument(x, given):
        given += 1
        return x * torch.from_numpy(given).to(x.device)

    def between(x, given):
        moved = torch.from_numpy(given)
        first = x * moved.to(x.device)
        given[0] = 5
        return first + moved.to(x.device)

    for fn in (of_state, of_argument, between):
        with pytest.raises(calque.TraceError, match=f"in {fn.__name__}: a CPU tensor .* NumPy"):
            calque.jit(fn)(ones(2), np.ones(2, np.float32))
        assert kept.tolist() == [1, 1]


def test_numpy_memory_that_the_function_writes_after_it_was_moved():
    def run(x, given):
        result = x * torch.from_numpy(given).to(x.device)
        given += 1
        return result

    run = calque.jit(run)
    for i in range(3):
        given = np.full(2, i, np.float32)
        assert run(ones(2), given).tolist() == [i, i]
        assert given.tolist() == [i + 1, i + 1]


def test_the_numpy_memory_of_a_tensor_is_put_back():
    """NumPy cannot make an array writeable that PyTorch owns, not even if it is."""
    tensor = torch.ones(2)
    view = tensor.numpy()

    @calque.jit
    def run(x):
        view[0] += 1
        return x * float(view[0])

    assert [run(ones(1)).item() for _ in range(3)] == [2, 3, 4]
    assert tensor.tolist() == [4, 1]


def test_a_writer_in_c_writes_to_its_file_at_each_call():
    """It refers to the file only by a method of it."""
    file = io.StringIO()
    writer = csv.writer(file)

    @calque.jit
    def run(x):
        writer.writerow([1, 2])
        return x * 2

    for i in range(4):
        run(ones(1))
        assert file.getvalue() == "1,2\r\n" * (i + 1)
