"""Arguments and results of compiled graphs whose axes lie in another order in memory."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import calque
from calque.dynamo.graphs import inputs
from calque.program import direct_call, program, shared_memory

DEVICES = ("cpu", "jax")
PERMUTED = {
    "transposed": lambda x: x.transpose(0, 2),
    "channels last": lambda x: x[None].to(memory_format=torch.channels_last),
    "moved": lambda x: x.movedim(0, 1),
    "with an axis of one": lambda x: x.movedim(0, 2).unsqueeze(1),
    "a slice": lambda x: x.transpose(0, 2)[1:],
    "one element": lambda x: x[:1, :1, :1].transpose(0, 2),
    "nothing": lambda x: x[:0].transpose(0, 2),
    "repeated": lambda x: x[:1].expand(3, -1, -1).transpose(0, 1),
    "complex": lambda x: torch.complex(x, x + 1).transpose(0, 1),
    "lazily conjugated": lambda x: torch.complex(x, x + 1).transpose(0, 1).conj(),
    "read as integers": lambda x: x.view(torch.int32).transpose(0, 2),
}


def compile(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="calque", fullgraph=True)


def values(device):
    return torch.arange(24.0).reshape(2, 3, 4).to(device)


def same(found, expected):
    assert torch.equal(found.cpu(), expected.cpu())
    assert found.stride() == expected.stride() or not found.numel()
    assert found.dtype == expected.dtype


@pytest.fixture
def handed(monkeypatch):
    """The pointers of the arrays that programs take."""
    seen = []

    def watched(compiled, numbers):
        run = direct_call.direct(compiled, numbers)

        def watching(call):
            return lambda arrays: (
                seen.extend(a.unsafe_buffer_pointer() for a in arrays) or call(arrays)
            )

        return run._replace(call=watching(run.call), start=watching(run.start))

    monkeypatch.setattr(program, "direct", watched)
    return seen


@pytest.mark.sampled(11)
@pytest.mark.parametrize("kind", PERMUTED)
@pytest.mark.parametrize("device", DEVICES)
def test_arguments_and_results_in_any_order(device, kind):
    def function(x):
        return x * 2, x.transpose(0, 1) + 1

    found = compile(function)(PERMUTED[kind](values(device)))
    for one, expected in zip(found, function(PERMUTED[kind](values("cpu"))), strict=True):
        same(one, expected)


@pytest.mark.parametrize("kind", ["transposed", "channels last", "moved", "with an axis of one"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_permuted_argument_is_written(device, kind):
    def function(x):
        x.mul_(3).add_(1)
        return x.sum()

    compiled = compile(function)
    base, expected = values(device), values("cpu")
    x, y = PERMUTED[kind](base), PERMUTED[kind](expected)
    for _ in range(2):
        same(compiled(x), function(y))
        same(x, y)
        same(base, expected)


def test_permuted_arguments_of_the_device_are_not_copied(handed, monkeypatch):
    x = torch.randn(4, 6, device="jax")
    compiled = compile(lambda x: x.relu() + 1)
    same(compiled(x.t()), x.cpu().t().relu() + 1)
    monkeypatch.setattr(inputs, "read", lambda *_: pytest.fail("a copy"))
    handed.clear()
    compiled(x.t())
    assert handed == [calque.to_jax(x).unsafe_buffer_pointer()]


def test_permuted_memory_of_the_host_is_shared(handed, monkeypatch):
    if shared_memory._direct() is None:
        pytest.skip("the device has memory of its own")
    weight = nn.Parameter(torch.randn(8, 16, 3, 3).to(memory_format=torch.channels_last))
    x = torch.randn(2, 16, 8, 8).to(memory_format=torch.channels_last)
    compiled = compile(lambda x: F.conv2d(x, weight))
    with torch.no_grad():
        compiled(x)
        monkeypatch.setattr(shared_memory, "host_array", lambda *_: pytest.fail("a copy"))
        handed.clear()
        found = compiled(x)
    assert set(handed) == {weight.data_ptr(), x.data_ptr()}
    torch.testing.assert_close(found, F.conv2d(x, weight).detach())


def test_later_arguments_may_lie_otherwise_behind_equal_strides():
    compiled = compile(lambda x: x * 2)
    base = torch.arange(24.0, device="jax")
    for x in (
        base.view(4, 6).t(),
        base.view(2, 2, 6).flatten(0, 1).t(),
        base.as_strided((6, 4), (1, 6)),
        torch.arange(30.0, device="jax")[6:].view(4, 6).t(),
        torch.arange(24, device="jax").float().view(torch.int32).view(torch.float32).view(4, 6).t(),
    ):
        same(compiled(x), x.cpu() * 2)


@pytest.mark.parametrize("device", DEVICES)
def test_a_result_in_another_order_has_memory_of_its_own(device):
    x = values(device)
    found = compile(lambda x: (x + 1).permute(2, 0, 1))(x)
    assert found._base is None
    found.add_(1)
    same(found, (values("cpu") + 2).permute(2, 0, 1))
    same(x, values("cpu"))
    same(found.permute(1, 2, 0).reshape(-1), values("cpu").reshape(-1) + 2)


def test_training_with_permuted_residuals():
    def loss(x, weight):
        scores = (x @ weight).transpose(-1, -2)
        return (scores.softmax(-1) @ x).square().sum()

    x, weight = torch.randn(3, 5, 4), torch.randn(4, 4)
    expected = [t.clone().requires_grad_() for t in (x, weight)]
    given = [t.to("jax").requires_grad_() for t in (x, weight)]
    loss(*expected).backward()
    compiled = compile(loss)
    for _ in range(2):
        for t in given:
            t.grad = None
        compiled(*given).backward()
    for one, other in zip(given, expected, strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad)


def _images(layer, x):
    y = layer(x)
    rows = y.movedim(1, -1).contiguous()  # is y itself, if that is channels_last
    rows += 1.0
    return y * 2, rows.view(-1), list(y.stride()), y.is_contiguous()


LAYERS = {
    "convolution": lambda: nn.Conv2d(4, 4, 3),
    "one axis": lambda: nn.Conv1d(4, 4, 3),
    "transposed": lambda: nn.ConvTranspose2d(4, 4, 3, stride=2),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False),
    "three axes": lambda: nn.Conv3d(4, 4, 3),
    "shuffled": lambda: nn.PixelShuffle(2),
}


@pytest.mark.parametrize("turned", ["images", "kernel", "nothing"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_program_sees_the_order_of_images(name, turned):
    torch.manual_seed(0)
    layer = LAYERS[name]()
    x = torch.randn(2, 4, *[6] * {"one axis": 1, "three axes": 3}.get(name, 2))
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if turned == "images" and x.ndim in formats:
        x = x.to(memory_format=formats[x.ndim])
    elif turned == "images":
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    elif turned == "kernel" and x.ndim in formats:
        layer.to(memory_format=formats[x.ndim])
    expected = _images(layer, x)
    layer, x = layer.to("jax"), x.to("jax")
    found = compile(lambda x: _images(layer, x))(x)
    for one, other in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(one.cpu(), other)
        assert one.stride() == other.stride()
    assert found[2:] == expected[2:]


@pytest.mark.parametrize("size", [5, 8])
def test_images_of_any_size_and_their_gradients_keep_their_order(size):
    layer = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    x = torch.randn(2, 3, size, size).to(memory_format=torch.channels_last).requires_grad_()
    y = layer(x)
    y.movedim(1, -1).view(-1).square().sum().backward()
    moved, given = layer.to("jax"), x.detach().to("jax").requires_grad_()
    torch._dynamo.reset()
    step = torch.compile(lambda x: moved(x).movedim(1, -1).view(-1), backend="calque", dynamic=True)
    step(given).square().sum().backward()
    torch.testing.assert_close(given.grad.cpu(), x.grad)
    assert given.grad.stride() == x.grad.stride()
