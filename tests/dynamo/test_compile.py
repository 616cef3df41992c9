"""`torch.compile(..., backend="calque")`."""

import copy

import jax.numpy as jnp
import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

import calque
from calque.device.kernels import copies
from calque.program import direct_call, program, sources
from tests import new_process

DEVICES = ("jax", "cpu")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def compile(fn, **settings):
    return torch.compile(fn, backend="calque", **settings)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8 * 16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm(self.conv(x)))
        return self.linear(F.max_pool2d(h, 2).flatten(1))


@pytest.mark.parametrize("device", DEVICES)
def test_a_model_trains_as_it_does_uncompiled(device):
    reference = Net()
    model = copy.deepcopy(reference).to(device)
    forward = compile(model, fullgraph=True)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, reference)]
    x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    for _ in range(3):
        losses = []
        for run, optimizer, where in zip((forward, reference), optimizers, (device, "cpu")):
            loss = F.cross_entropy(run(x.to(where)), y.to(where))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            assert loss.device.type == where
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    torch.testing.assert_close(model.norm.running_var.cpu(), reference.norm.running_var)
    assert model.norm.num_batches_tracked.item() == 3
    model.eval()
    reference.eval()
    with torch.no_grad():
        torch.testing.assert_close(forward(x.to(device)).cpu(), reference(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.unsqueeze_(0),
        lambda x: x.transpose_(1, 3),
        lambda x: x.as_strided_((2, 8, 1, 4), (32, 1, 4, 8)),
        lambda x: F.adaptive_avg_pool2d(x, 1),  # restrides its result in place
    ],
)
def test_a_geometry_changed_in_place(device, change):
    x = torch.randn(2, 8, 1, 4).to(memory_format=torch.channels_last)
    want = change(x + 1)
    got = compile(lambda x: change(x + 1), fullgraph=True)(x.to(device))
    assert got.stride() == want.stride()
    torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("device", DEVICES)
def test_a_view_of_what_lies_otherwise_than_foretold(device):
    norm = nn.BatchNorm1d(6)  # for a transposed input, its fake kernel keeps the strides
    x = torch.randn(4, 5, 6)

    def fn(x, norm):
        return norm(x.transpose(1, 2)).transpose(1, 2).view(4, 30)

    want = norm(x.transpose(1, 2)).transpose(1, 2).reshape(4, 30)
    norm = nn.BatchNorm1d(6).to(device)
    torch.testing.assert_close(compile(fn, fullgraph=True)(x.to(device), norm).cpu(), want)


@torch.library.custom_op("calque_test::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    """A body that reads values."""
    return x * sum(x.tolist())


@counted.register_fake
def _(x):
    return torch.empty_like(x)


counted.register_autograd(
    lambda ctx, g: g * ctx.saved_tensors[0].sum(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@pytest.mark.filterwarnings("ignore:calque_test..counted has no rule")
@pytest.mark.parametrize("wrap", [compile, calque.jit])
def test_an_operator_that_reads_values_is_called_back(wrap):
    x = torch.tensor([1.0, 2.0], device="jax", requires_grad=True)
    y = wrap(lambda x: counted(x + 1) * 2)(x)
    y.sum().backward()
    assert y.tolist() == [20.0, 30.0]
    assert x.grad.tolist() == [10.0, 10.0]


@torch.library.custom_op("calque_test::scale_", mutates_args=("x", "rows"))
def scale_(x: torch.Tensor, rows: list[torch.Tensor], n: float) -> torch.Tensor:
    """A body of operators that writes to its arguments."""
    for row in rows:
        row.sub_(1)
    return x.mul_(n).sum()


@scale_.register_fake
def _(x, rows, n):
    return x.new_empty(())


@torch.library.custom_op("calque_test::sort_", mutates_args=("x",))
def sort_(x: torch.Tensor, y: torch.Tensor) -> None:
    """A body that reads values after it has written."""
    x.add_(1)
    x.copy_(torch.tensor(sorted(x.tolist()), dtype=x.dtype, device=x.device) + y)


@pytest.mark.filterwarnings("ignore:calque_test..sort_ has no rule")
@pytest.mark.parametrize("device", DEVICES)
def test_operators_that_write_to_their_arguments(device):
    def step(x, y):
        z = y * 2
        total = scale_(x.t(), [y, z[1:3]], 3.0)
        scale_(z.view(2, 2).t()[0], [], 2.0)
        sort_(x[1], x[0])
        return total, z

    found = []
    for run, where in ((step, "cpu"), (compile(step, fullgraph=True), device)):
        x = torch.tensor([[0.0, 3.0, 1.0, 2.0, 9.0], [5.0, 4.0, 3.0, 2.0, 1.0]], device=where)
        y = torch.arange(4.0, device=where)
        results = run(x[:, :4], y)
        found.append([t.tolist() for t in (*results, x, y)])
    assert found[0] == found[1]


library = torch.library.Library("calque_test", "FRAGMENT")
library.define("fill_sorted(Tensor(a!) x, Tensor[] ys) -> ()")


def fill_sorted(x, ys):
    x.copy_(torch.tensor(sorted(x.tolist())) + ys[0])


library.impl("fill_sorted", fill_sorted, "CPU")


@pytest.mark.filterwarnings("ignore:calque_test..fill_sorted has no rule")
@pytest.mark.parametrize("wrap", [compile, calque.jit])
def test_an_operator_that_only_writes_needs_no_fake_kernel(wrap):
    x, y = torch.tensor([3.0, 1.0], device="jax"), torch.ones(2, device="jax")
    wrap(lambda x, y: torch.ops.calque_test.fill_sorted(x, [y]))(x, y)
    assert x.tolist() == [2.0, 4.0]


@pytest.mark.filterwarnings("ignore:calque_test..sort_ has no rule")
def test_a_written_argument_that_another_one_shares_is_not_called_back():
    def step(x):
        torch.ops.calque_test.sort_(x, x)

    with pytest.raises(calque.UnsupportedOpError, match="shares memory with another"):
        calque.jit(step)(torch.ones(2, device="jax"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "fn", [lambda x: x * x.sum().item(), lambda x: x[x > 1].sum()], ids=["number", "size"]
)
def test_captured_values_are_refused_with_a_reason(fn, device):
    settings = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    x, said = (
        torch.tensor([1, 2], device=device),
        r"test_compile.py:\d+ in .*\n.*capture_scalar_out",
    )
    with torch._dynamo.config.patch(settings), pytest.raises(calque.TraceError, match=said):
        compile(fn)(x)
    torch._dynamo.reset()
    assert compile(fn)(x).tolist() == fn(x).tolist()


def test_assertions_in_a_graph():
    x = torch.tensor([1, 2], device="jax")
    torch._assert_async((x > 0).all())
    with pytest.raises(RuntimeError, match="nonzero value"):
        torch._assert_async((x > 1).all())
    with pytest.raises(RuntimeError, match="too small"):
        torch._assert_async((x > 1).all(), "too small")
    assert compile(lambda x: F.one_hot(x, 4), fullgraph=True)(x).tolist() == [
        [0, 1, 0, 0],
        [0, 0, 1, 0],
    ]

    def checked(x):
        torch._assert_async((x > 1).all(), "too small")
        return x + 1

    assert calque.jit(checked)(x).tolist() == [2, 3]  # values are not checked by default
    with pytest.raises(RuntimeError, match="too small"):
        calque.jit(checked, checks=True)(x)


def test_the_backend_is_found_without_importing_calque():
    program = """
import torch
f = torch.compile(lambda x: x.sin() + 1, backend="calque")
assert torch.equal(f(torch.zeros(3)), torch.ones(3))
"""
    new_process.check(program, filter="ignore")


def test_tensors_of_the_device_are_not_copied(monkeypatch):
    x = torch.randn(4, 4, device="jax")
    weight = torch.randn(4, 4, device="jax", requires_grad=True)
    seen = []

    def watched(compiled, numbers):
        run = direct_call.direct(compiled, numbers)

        def call(arrays):
            seen.extend(a.unsafe_buffer_pointer() for a in arrays)
            return run.call(arrays)

        def start(arrays):
            seen.extend(a.unsafe_buffer_pointer() for a in arrays)
            return run.start(arrays)

        return run._replace(call=call, start=start)

    monkeypatch.setattr(program, "direct", watched)
    forward = compile(lambda x: (x @ weight).relu())
    forward(x).sum().backward()
    for module, name in ((copies, "to_host"), (sources, "host_array")):
        monkeypatch.setattr(module, name, lambda *a, **k: pytest.fail("a copy"))
    seen.clear()
    forward(x).sum().backward()
    assert {calque.to_jax(t).unsafe_buffer_pointer() for t in (x, weight)} <= set(seen)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("device", DEVICES)
def test_a_write_through_a_mask_and_an_index(device, rows):
    def mark(x, mask, index):
        x = x * 2
        x[mask, index] = 1.0
        return x

    x, mask, index = torch.randn(6, 4), torch.arange(6) % 4 < rows, torch.tensor([3, 0, 0])
    mask[4:] = False
    result = compile(mark, fullgraph=True)(*(t.to(device) for t in (x, mask, index)))
    torch.testing.assert_close(result.cpu(), mark(x, mask, index))


def test_a_mask_that_does_not_fit_the_index_beside_it_writes_nothing():
    def mark(x, mask, index):
        return x.index_put((mask, index), torch.ones((), device=x.device))

    x, mask = torch.zeros(6, 4, device="jax"), torch.arange(6, device="jax") < 2
    result = compile(mark)(x, mask, torch.arange(3, device="jax"))
    assert not result.any()


def test_memory_of_the_cpu_is_shared():
    x = torch.randn(64, 64)
    forward = compile(lambda x: x * 2)
    y = forward(x)
    x.mul_(0)  # the program has ended
    assert y.abs().sum() > 0
    y.add_(1)
    assert forward(x).sum() == 0


@pytest.mark.parametrize("device", DEVICES)
def test_arguments_that_are_written(device):
    def update(x, y):
        x.mul_(2)
        x[0] += y
        return x.sum()

    x, y = torch.ones(3, device=device), torch.full((), 5.0, device=device)
    base = torch.zeros(2, 3, device=device)
    assert compile(update)(x, y).item() == 11
    assert x.tolist() == [7, 2, 2]
    compile(update)(base[1], y)
    assert base.tolist() == [[0, 0, 0], [5, 0, 0]]


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_differs_from_call_to_call_and_follows_the_seed(device):
    forward = compile(lambda x: F.dropout(x, 0.5))
    x = torch.ones(64, device=device, requires_grad=True)
    torch.manual_seed(1)
    first, second = forward(x), forward(x)
    torch.manual_seed(1)
    assert torch.equal(forward(x), first)
    assert not torch.equal(first, second)
    first.sum().backward()
    assert torch.equal(x.grad, first.detach())


@pytest.mark.parametrize("device", DEVICES)
def test_results_that_are_views_or_arguments(device):
    def parts(x):
        y = x + 1
        return x, y, y[1:], y.t(), x[0], 7, None

    x = torch.arange(6.0, device=device).reshape(2, 3)
    same, y, rows, transposed, row, seven, nothing = compile(parts)(x)
    assert same is x
    assert (seven, nothing) == (7, None)
    assert transposed.stride() == (1, 3)
    y[1, 1] = 100
    assert rows[0, 1] == transposed[1, 1] == 100
    row[0] = -1
    assert x[0, 0] == -1


@pytest.mark.parametrize("device", DEVICES)
def test_dynamic_shapes_do_not_capture_again(device):
    counter = torch._dynamo.testing.CompileCounterWithBackend("calque")
    forward = torch.compile(lambda x: (x * x.shape[0]).sum(0), backend=counter, dynamic=True)
    for length in (2, 3, 5, 9):
        x = torch.ones(length, 4, device=device)
        assert forward(x).tolist() == [length**2] * 4
    assert counter.frame_count == 1


@pytest.mark.parametrize("device", DEVICES)
def test_graph_breaks(device):
    def f(x):
        y = x.sin()
        if y.sum().item() > 0:
            return y * 2
        return y - 1

    x = torch.ones(3, device=device)
    torch.testing.assert_close(compile(f)(x), f(x))
    torch.testing.assert_close(compile(f)(-x), f(-x))


@pytest.mark.parametrize("device", DEVICES)
def test_control_flow(device):
    def f(x):
        def grow(i, v):
            return i + 1, v * 2

        y = torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))
        _, z = torch.while_loop(
            lambda i, v: i < 3, grow, (torch.zeros((), dtype=torch.int64, device=x.device), y)
        )
        return z

    x = torch.ones(2, device=device)
    forward = compile(f, fullgraph=True)
    with torch.no_grad():
        assert forward(x).tolist() == [16, 16]
        assert forward(-x).tolist() == [-16, -16]


def test_scans():
    from torch._higher_order_ops import associative_scan, scan

    def f(x):
        total, rows = scan(lambda c, row: (c + row, c * row), torch.zeros_like(x[0]), x, dim=0)
        running = associative_scan(torch.add, x, 0, combine_mode="generic")
        return total, rows, running

    x = torch.arange(6.0, device="jax").reshape(3, 2)
    with torch.no_grad():
        total, rows, running = compile(f, fullgraph=True)(x)
    assert total.tolist() == [6, 9]
    assert rows.tolist() == [[0, 0], [0, 3], [8, 20]]
    assert torch.equal(running.cpu(), x.cpu().cumsum(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.complex64])
@pytest.mark.parametrize("device", DEVICES)
def test_dtypes_are_kept(device, dtype):
    x = torch.arange(4, device=device).to(dtype)
    y = compile(lambda x: x * 2 + 1)(x)
    assert y.dtype == dtype
    assert torch.equal(y.cpu(), torch.arange(4).to(dtype) * 2 + 1)


def test_attention_of_the_cpu():
    attention = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 16, requires_grad=True)
    want = attention(x)
    got = compile(attention)(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    expected = torch.autograd.grad(want.sum(), x)[0]
    torch.testing.assert_close(torch.autograd.grad(got.sum(), x)[0], expected, rtol=1e-3, atol=1e-4)


def test_modes_and_options_are_refused_with_a_reason():
    f = compile(lambda x: x + 1, mode="max-autotune")
    with pytest.raises(Exception, match="does not support mode='max-autotune'"):
        f(torch.ones(2))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="no option 'triton'|no option triton"):
        compile(lambda x: x + 1, options={"triton": True})(torch.ones(2))


def operator(name, rule=None):
    """An operator that only fake tensors can run, and maybe a rule for it."""
    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.register_fake(name)(torch.empty_like)
    if rule is not None:
        calque.op(name)(rule)


def line_of(function, place):
    """Where a line of a function is, as errors name it."""
    return rf"test_compile.py:{function.__code__.co_firstlineno + place} in {function.__name__}: "


@pytest.mark.parametrize("device", DEVICES)
def test_an_operator_that_nothing_serves_is_refused_at_the_users_line(device):
    name = f"calquetest::unserved_{device}"
    operator(name)
    unserved = getattr(torch.ops.calquetest, f"unserved_{device}")

    def f(x):
        y = x + 1
        return unserved(y)

    with pytest.raises(Exception, match=line_of(f, 2) + f".*{name} has no rule .* no CPU kernel"):
        compile(f)(torch.ones(2, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_an_error_of_a_rule_names_the_users_line(device):
    def rule(x):
        raise ValueError("it is broken")

    operator(f"calquetest::broken_{device}", rule)
    broken = getattr(torch.ops.calquetest, f"broken_{device}")

    def f(x):
        return broken(x * 2) + 1

    with pytest.raises(Exception, match=line_of(f, 1) + ".*it is broken"):
        compile(f)(torch.ones(2, device=device))


def test_an_error_in_the_backward_names_the_line_of_the_forward():
    def gradient(x):
        raise ValueError("it has no gradient")

    operator("calquetest::backward", gradient)
    operator("calquetest::forward")
    torch.library.register_autograd(
        "calquetest::forward", lambda context, g: torch.ops.calquetest.backward(g)
    )
    calque.op("calquetest::forward")(lambda x: x * 1)

    def f(x):
        y = x * 2
        return torch.ops.calquetest.forward(y).sum()

    x = torch.ones(2, device="jax", requires_grad=True)
    with pytest.raises(Exception, match=r"test_compile.py:\d+ in f: .*it has no gradient"):
        compile(f)(x).backward()


def test_a_rule_that_gives_another_shape_fails_where_it_is_used():
    operator("calquetest::five", lambda x: jnp.zeros(5))

    def f(x):
        y = torch.ops.calquetest.five(x)
        return y + x

    with pytest.raises(Exception, match=line_of(f, 2)):
        compile(f)(torch.ones(3, 3, device="jax"))


@pytest.mark.parametrize("device", DEVICES)
def test_shapes_that_do_not_fit_raise_what_pytorch_raises(device):
    forward = compile(lambda x, y: x @ y, dynamic=True)
    x = torch.ones(3, 4, device=device)
    forward(x, torch.ones(4, 2, device=device))
    with pytest.raises(Exception, match="same reduction dim|cannot be multiplied|must match"):
        forward(x, torch.ones(5, 2, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_rms_norm_over_dimensions_that_vary(device):
    forward = compile(lambda x, w: F.rms_norm(x, x.shape[1:], weight=w), dynamic=True)
    for shape in ((4, 2, 3), (2, 3, 5)):
        x = torch.randn(shape)
        w = torch.randn(shape[1:], requires_grad=True)
        moved = w.detach().to(device).requires_grad_()
        result, expected = forward(x.to(device), moved), F.rms_norm(x, shape[1:], w)
        torch.testing.assert_close(result.cpu(), expected)
        result.sum().backward()
        (grad,) = torch.autograd.grad(expected.sum(), w)
        torch.testing.assert_close(moved.grad.cpu(), grad)


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_a_graph_that_reaches_around_a_view(device):
    def function(x):
        return x.as_strided((2,), (1,), 1) * 1, x[1:].as_strided((2,), (3,), 2) + x.sum()

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="calque")
    for view in (lambda base: base[4:10], lambda base: base.view(4, 6)[:, 1:3]):
        for start in (0, 1):
            base = torch.arange(start, 24.0 + start, device=device)
            expected = function(view(torch.arange(start, 24.0 + start)))
            for found, value in zip(compiled(view(base)), expected, strict=True):
                assert found.tolist() == value.tolist()
    base = torch.arange(20.0, device=device)
    for start in (0, 2, 5):
        expected = function(torch.arange(20.0)[start : start + 6])
        for found, value in zip(compiled(base[start : start + 6]), expected, strict=True):
            assert found.tolist() == value.tolist()


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_a_graph_that_only_reads_strided_inputs_writes_to_none(device):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x * 2, backend="calque")
    base = torch.arange(12.0, device=device).view(3, 4)
    version = base._version
    for x in (base[:, 1:3], base[:, :1].expand(3, 5), base.as_strided((3, 3), (2, 1))):
        assert compiled(x).tolist() == (x * 2).tolist()
    assert base._version == version


def pointers(tensors):
    return [calque.to_jax(t).unsafe_buffer_pointer() for t in tensors]


def test_what_a_graph_writes_takes_the_memory_of_what_it_replaces():
    net = Net().to("jax").train()
    reference = copy.deepcopy(net)
    x = torch.randn(4, 3, 8, 8, device="jax")
    forward = compile(net)
    buffers = [net.norm.running_mean, net.norm.running_var]
    forward(x), reference(x)
    before = pointers(buffers)
    forward(x), reference(x)
    assert pointers(buffers) == before
    torch.testing.assert_close(net.norm.running_var, reference.norm.running_var)


def test_an_array_that_somebody_holds_is_not_taken_away():
    def double(x):
        x.mul_(2)

    x = torch.ones(3, device="jax")
    step = compile(double)
    step(x)
    held, clone, alias = calque.to_jax(x), x.clone(), x.detach()
    step(x)
    assert held.tolist() == clone.tolist() == [2, 2, 2]
    assert x.tolist() == alias.tolist() == [4, 4, 4]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_compiled_optimizer_updates_in_place(kind):
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).to("jax")
    reference = copy.deepcopy(model)
    ours, theirs = (kind(m.parameters(), lr=0.1, weight_decay=0.1) for m in (model, reference))
    step = compile(ours.step)
    x = torch.randn(5, 4, device="jax")
    taken = []
    for _ in range(3):
        for m in (model, reference):
            m.zero_grad()
            m(x).square().mean().backward()
        before = pointers(model.parameters())
        step()
        theirs.step()
        taken.append(pointers(model.parameters()) == before)
    assert taken[1:] == [True, True]
    for mine, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.bfloat16, torch.half)])
def test_a_compiled_optimizer_steps_parameters_of_another_dtype_than_before(dtypes):
    model = nn.Linear(3, 2).to("jax")
    reference = copy.deepcopy(model)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference))
    step = compile(ours.step)
    for dtype in (*dtypes, dtypes[0]):
        for m in (model, reference):
            m.to(dtype)
            m.zero_grad()
            m(torch.ones(4, 3, device="jax", dtype=dtype)).square().mean().backward()
        step()
        theirs.step()
        for mine, expected in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_an_operator_of_numbers_alone(device):
    def f(x, n):
        return x + torch.ops.aten.mul(n, 2.0), torch.ops.aten.add(n, 1)

    compiled = torch.compile(f, backend="calque")
    x = torch.ones(2, device=device)
    for n in (1.5, 2.5):
        for mine, expected in zip(compiled(x, n), f(x, n), strict=True):
            assert (mine.device, mine.tolist()) == (expected.device, expected.tolist())


def test_gradients_of_several_results_at_once():
    x = torch.tensor([1.0, 2.0, 3.0])

    def jacobian(device):
        weight = torch.tensor([3.0, 2.0, 1.0], device=device, requires_grad=True)

        def square(x):
            return (weight * x).square()

        run = square if device == "cpu" else compile(square)
        eye = torch.eye(3, device=device)
        (found,) = torch.autograd.grad(run(x.to(device)), weight, eye, is_grads_batched=True)
        run(x.to(device)).sum().backward()  # with the same program
        return found.cpu(), weight.grad.cpu()

    for found, expected in zip(jacobian("jax"), jacobian("cpu"), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_module_whose_class_is_jitted():
    @calque.jit
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2, device="jax")

        def forward(self, x):
            return self.layer(x) * 2

    module = Doubled()
    x = torch.ones(3, 2, device="jax")
    expected = F.linear(x, module.layer.weight, module.layer.bias) * 2
    compiled = torch.compile(module, backend="calque")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), expected)
    compiled(x).sum().backward()
    torch.testing.assert_close(module.layer.bias.grad, torch.full((2,), 6.0, device="jax"))
