"""Results lie in memory as on the CPU: strides, offsets, sharing and memory formats."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import calque
from calque.device.memory import axis_order

Tensor = torch.Tensor
CL = torch.channels_last


def _transposed(x: Tensor) -> Tensor:
    return x.transpose(0, -1).contiguous().transpose(0, -1)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "row-major": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=CL),
    "part of channels_last": lambda x: torch.cat([x, x], 1).contiguous(memory_format=CL)[
        :, : x.shape[1]
    ],
    "transposed": _transposed,
    "a view": lambda x: torch.stack([x.mT, x.mT])[1].mT,
    "gaps": lambda x: torch.stack([x, x], -1)[..., 0],
    "expanded": lambda x: x[:1].expand(x.shape),
}

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "unary": lambda x: (x.exp(), -x, x.relu(), x.isnan(), torch.frexp(x), x.double()),
    "numbers": lambda x: (x + 1, 2 * x, x**2, x > 0, x // 2, x.clamp(min=0)),
    "binary": lambda x: (x + x, x * torch.ones_like(x).contiguous(), x.contiguous() - x),
    "broadcast": lambda x: (x - x.mean(1, keepdim=True), x + x[0], x * x[:, :1, :1, :1]),
    "ternary": lambda x: (torch.where(x > 0, x, 0), torch.addcmul(x, x, x), x.lerp(x, 0.5)),
    "activations": lambda x: (F.gelu(x), F.silu(x), F.hardswish(x), F.elu(x), F.glu(x, 1)),
    "losses": lambda x: (F.mse_loss(x, -x, reduction="none"), F.l1_loss(x, -x, reduction="none")),
    "reductions": lambda x: (x.sum(1), x.mean((2, 3), keepdim=True), x.amax(0), x.max(1)),
    "scans": lambda x: (x.cumsum(1), x.sort(1), x.softmax(1), x.log_softmax(-1)),
    "reshape": lambda x: (x.reshape(2, -1), x.flatten(), x.ravel(), x.reshape(-1, 6)),
    "contiguous": lambda x: (x.contiguous(), x.contiguous(memory_format=CL)),
    "views": lambda x: (x.detach(), x.chunk(2, 1), x.unbind(2), x.mT, x.movedim(0, 2), x[None]),
    "more views": lambda x: (x.diagonal(), x.unfold(2, 2, 2), x.narrow(1, 1, 2), x.squeeze()),
    "casts": lambda x: (x.to(torch.float32), x.float(), x.to(torch.int64), x.to(memory_format=CL)),
    "clones": lambda x: (x.clone(), x.clone(memory_format=CL), x.to(x.dtype, copy=True)),
    "like": lambda x: (torch.zeros_like(x), torch.rand_like(x), torch.empty_like(x)),
    "like, in a format": lambda x: torch.ones_like(x, memory_format=CL),
    "complex": lambda x: (torch.complex(x, x).real, torch.view_as_real(torch.complex(x, x))),
    "slices": lambda x: (x[1], x[:, 1:], x[..., 0], x[:, ::2], x[:, None], x[-1:]),
    "indices": lambda x: (x[[0, 1]], x[:, [0, 1]], x[x > 0], x[1, [0, 1]]),
    "index operators": lambda x: (x.take_along_dim(x.argsort(1), 1), x.masked_fill(x > 0, 0)),
    "joined": lambda x: (torch.cat([x, x], 1), torch.stack([x, x]), x.repeat(2, 1, 1, 1)),
    "joined unlike": lambda x: torch.cat([x, x.contiguous()]),
    "moved": lambda x: (x.flip(1), x.roll(1, 1), torch.rot90(x), F.pad(x, (1, 1))),
    "products": lambda x: (x @ x.mT, x.mT @ x, torch.einsum("bcij,bdij->bdc", x, x)),
    "convolution": lambda x: F.conv2d(x, torch.ones(8, 4, 3, 3, device=x.device)),
    "depthwise": lambda x: F.conv2d(x, torch.ones(4, 1, 3, 3, device=x.device), groups=4),
    "upwards": lambda x: F.conv_transpose2d(x, torch.ones(4, 8, 3, 3, device=x.device)),
    "norms": lambda x: (F.batch_norm(x, None, None, training=True), F.group_norm(x, 2)),
    "pools": lambda x: (F.max_pool2d(x, 2, return_indices=True), F.adaptive_avg_pool2d(x, 2)),
    "resized": lambda x: (F.interpolate(x, scale_factor=2), F.pixel_shuffle(x, 2)),
    "solved": lambda x: (torch.linalg.qr(x), torch.linalg.svd(x), torch.linalg.solve(_hill(x), x)),
    "factored": lambda x: (torch.linalg.cholesky(_hill(x)), torch.linalg.inv(_hill(x))),
    "spectra": lambda x: (torch.fft.fft(x, dim=1), torch.fft.rfft2(x), torch.fft.hfft(x, dim=2)),
    "found": lambda x: (x.nonzero(), torch.argwhere(x > 0), torch.where(x > 0)),
}


def _hill(x: Tensor) -> Tensor:
    """A well-conditioned positive matrix that lies as `x` does not."""
    return x @ x.mT + 9 * torch.eye(x.shape[-2], device=x.device)


def described(result: Any, given: Tensor) -> list[Any]:
    """All that a program can see of where results lie (the strides of long axes only)."""
    rows = []
    for x in pytree.tree_leaves(result):
        shared = x.untyped_storage()._cdata == given.untyped_storage()._cdata
        strides = [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]
        images = x.ndim == 4 and x.is_contiguous(memory_format=CL)
        place = x._base is given, x.storage_offset() if shared else 0
        rows.append((tuple(x.shape), strides, shared, place, x.is_contiguous(), images))
    return rows


def _image() -> Tensor:
    return torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.sampled(40)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_results_lie_as_on_the_cpu(program, layout):
    theirs, ours = layout(_image()), layout(_image().to("jax"))
    assert ours.stride() == theirs.stride()
    expected = described(program(theirs), theirs)
    for _ in range(2):  # the second call takes the fast path
        assert described(program(ours), ours) == expected


@pytest.mark.parametrize("name", ["unary", "convolution", "clones", "solved", "spectra"])
@pytest.mark.parametrize("layout", ["channels_last", "transposed"])
def test_a_jitted_function_gives_what_it_gives_eagerly(name, layout):
    ours = LAYOUTS[layout](_image().to("jax"))
    program = PROGRAMS[name]
    expected = program(ours)
    actual = calque.jit(program)(ours)
    assert described(actual, ours) == described(expected, ours)
    for a, b in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_values_are_right_whatever_the_strides(layout):
    def program(x):
        y = torch.relu(x + x.mean(1, keepdim=True)).permute(0, 2, 3, 1)
        z = y * y.flip(1)
        z[0].mul_(2)
        return z.reshape(2, -1) @ z.reshape(2, -1).t(), z.mT.exp()[1:], z.transpose(1, 3) - x

    ours, theirs = program(layout(_image().to("jax"))), program(layout(_image()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-4)


SHAPES = [(1, 0, 3), (0,), (2, 0), (0, 2), (0, 5, 0)]
EMPTIES: dict[str, Callable[[Any, str], Tensor]] = {
    "empty": lambda s, d: torch.empty(s, device=d),
    "exp": lambda s, d: torch.zeros(s, device=d).exp(),
    "zeros_like": lambda s, d: torch.zeros_like(torch.zeros(s, device=d)),
    "moved": lambda s, d: torch.zeros(s).to(d),
    "jitted": lambda s, d: _jitted(torch.cos)(torch.zeros(s, device=d)),
}


ALONE: dict[str, Callable[[Tensor], Any]] = {
    "casts": lambda x: (x.float(), x.to(torch.int64), x.clone(), torch.zeros_like(x)),
    "numbers": lambda x: (x + 1, 2 * x, x / 255, x > 0, x // 2, x.clamp(min=1), 1 - x),
    "cast, then used": lambda x: (x.float() / 255, -x.float(), x.float().exp().sqrt()),
    "resized": lambda x: F.interpolate(x.float(), size=(3, 3), mode="bilinear"),
    "convolution": lambda x: F.conv2d(x.float(), torch.ones(2, 3, 3, 3, device=x.device)),
}


@pytest.mark.parametrize("program", ALONE.values(), ids=ALONE)
def test_the_axis_of_a_single_image_has_the_stride_that_it_has_on_the_cpu(program):
    for form in (CL, torch.contiguous_format):
        batch = torch.ones(2, 3, 6, 6, dtype=torch.uint8).contiguous(memory_format=form)
        theirs, ours = batch[0][None], batch.to("jax")[0][None]
        expected = [x.stride() for x in pytree.tree_leaves(program(theirs))]
        for _ in range(4):  # the last call takes the fast path
            assert [x.stride() for x in pytree.tree_leaves(program(ours))] == expected


SINGLE_PIXELS: dict[str, Callable[[Tensor], Any]] = {
    "elementwise": lambda x: (x + x[0], x[0] + x, x * 5, x * torch.ones(3, 3, device=x.device)),
    "convolution": lambda x: F.conv2d(x, torch.ones(5, 4, 1, 1, device=x.device)).sigmoid(),
    "norm": lambda x: (F.batch_norm(x, None, None, training=True), F.group_norm(x, 2)),
    "pools": lambda x: (F.adaptive_avg_pool2d(x.expand(2, 4, 3, 3), 1), F.max_pool2d(x, 1)),
}


@pytest.mark.parametrize("program", SINGLE_PIXELS.values(), ids=SINGLE_PIXELS)
@pytest.mark.parametrize("form", [CL, torch.contiguous_format])
def test_images_of_one_pixel_are_channels_last_by_their_strides(program, form):
    theirs = torch.empty(2, 4, 1, 1, memory_format=form).fill_(1)
    ours = theirs.to("jax")
    expected = [x.stride() for x in pytree.tree_leaves(program(theirs))]
    for _ in range(4):  # the last call takes the fast path
        assert [x.stride() for x in pytree.tree_leaves(program(ours))] == expected


def _strided(draw: random.Random, shape: tuple[int, ...]) -> Tensor:
    if draw.random() < 0.3:
        return torch.empty_strided(shape, [draw.choice([0, 1, 2, 3, 4, 6, 8, 12]) for _ in shape])
    order = draw.sample(range(len(shape)), len(shape))
    base = torch.empty([shape[axis] * draw.choice([1, 1, 2]) for axis in order])
    return base[tuple(slice(shape[axis]) for axis in order)].permute(
        [order.index(axis) for axis in range(len(shape))]
    )


def test_the_order_of_axes_is_that_of_pytorch():
    draw = random.Random(0)
    for _ in range(3000):
        shape = tuple(draw.choice([0, 1, 1, 2, 3, 4]) for _ in range(draw.randrange(1, 5)))
        x, y = _strided(draw, shape), _strided(draw, shape)
        assert axis_order.of_copy(x.shape, x.stride()) == x.clone().stride()
        if x.numel():
            assert axis_order.of_elementwise(((x.shape, x.stride()),)) == x.neg().stride()
            row = y[0]
            places = [(t.shape, t.stride()) for t in (x, y, row)]
            assert axis_order.of_elementwise(tuple(places[:2])) == (x + y).stride()
            assert axis_order.of_elementwise((places[0], places[2])) == (x + row).stride()


def test_a_copy_with_some_elements_filled_keeps_the_order_of_axes():
    for device in ("cpu", "jax"):
        x = torch.zeros(4, 6, device=device)[:, ::2].t()
        assert x.index_fill(0, torch.tensor([1], device=device), 2).stride() == (1, 3)
        assert (x + 4).mvlgamma(1).stride() == (4, 1)


def _jitted(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: calque.jit(function)(x) if x.device.type == "jax" else function(x)


@pytest.mark.parametrize("make", EMPTIES.values(), ids=EMPTIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_an_empty_axis_counts_as_one(make, shape):
    ours, theirs = make(shape, "jax"), make(shape, "cpu")
    assert ours.stride() == theirs.stride()
    assert ours.view(-1).shape == (0,)
    assert ours.untyped_storage().nbytes() == 0


def test_a_model_in_channels_last_stays_so():
    def train(device):
        torch.manual_seed(0)
        conv, norm = torch.nn.Conv2d(4, 8, 3), torch.nn.BatchNorm2d(8)
        model = torch.nn.Sequential(conv, norm, torch.nn.ReLU(), torch.nn.MaxPool2d(2))
        model = model.to(device, memory_format=CL)
        x = _image().to(device).to(memory_format=CL).requires_grad_()
        y = model(x)
        y.square().sum().backward()
        return y, x.grad, conv.weight, conv.weight.grad

    for a, b in zip(train("jax"), train("cpu"), strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-4, atol=1e-4)


def test_channels_last_images_can_be_viewed_as_rows():
    x = _image().to("jax").to(memory_format=CL)
    assert x.sigmoid().permute(0, 2, 3, 1).view(-1, 4).shape == (72, 4)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.sigmoid().view(-1)


def test_recurrent_layers_make_their_outputs_step_by_step():
    for device in ("cpu", "jax"):
        layer = torch.nn.GRU(3, 4, batch_first=True).to(device)
        output, _ = layer(torch.zeros(2, 5, 3, device=device))
        assert output.stride() == (4, 8, 1)


OUT: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, out: torch.softmax(x, 1, out=out),
    "matmul": lambda x, out: torch.matmul(x, x, out=out),
    "inv": lambda x, out: torch.linalg.inv(x, out=out),
    "randn": lambda x, out: torch.randn(3, 3, out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
}


@pytest.mark.parametrize("call", OUT.values(), ids=OUT)
def test_out_keeps_its_strides(call):
    x = torch.eye(3, device="jax") + torch.ones(3, 3, device="jax")
    base = torch.zeros(3, 3, 2, device="jax")
    out = base[..., 1]
    assert call(x, out=out) is out
    assert out.stride() == (6, 2)
    assert base[..., 0].eq(0).all()
    assert base[..., 1].ne(0).any()


_TURNED = {
    "add": lambda x, out: torch.add(x, x, out=out),
    "exp": lambda x, out: torch.exp(x, out=out),
    "gelu": lambda x, out: torch._C._nn.gelu(x, out=out),
    "inv": lambda x, out: torch.linalg.inv(x[0] + 9 * torch.eye(3, device=x.device), out=out),
    "stack": lambda x, out: torch.stack([x, x], 1, out=out),
    "flip": lambda x, out: torch.ops.aten.flip.out(x, [0], out=out),
    "eigvalsh": lambda x, out: torch.linalg.eigvalsh(x, out=out),
    "eigvalsh, empty": lambda x, out: torch.linalg.eigvalsh(x[:, :0, :0], out=out),
}


@pytest.mark.parametrize("call", _TURNED.values(), ids=_TURNED)
def test_an_out_that_is_resized_gets_the_strides_that_it_has_on_the_cpu(call):
    x = torch.randn(2, 3, 3).transpose(1, 2)
    want, got = torch.empty(0), torch.empty(0, device="jax")
    call(x, want), call(x.to("jax"), got)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got.cpu(), want)


def test_resize_to_the_same_size_keeps_the_strides():
    x = torch.zeros(3, 4, device="jax").t()
    assert x.resize_(4, 3).stride() == (1, 4)
    assert x.resize_(3, 4).stride() == (4, 1)


def test_polygamma_in_place():
    x = torch.tensor([0.5, 1.5])
    torch.testing.assert_close(x.to("jax").polygamma_(2).cpu(), x.polygamma_(2))


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: torch.rsub(x, y),
        lambda x, y: torch.ops.aten.threshold_backward(x, y, 0.0),
        lambda x, y: torch.ops.aten.leaky_relu_backward(x, y, 0.1, False),
        lambda x, y: torch.ops.aten._prelu_kernel_backward(x, y, x),
        lambda x, y: torch.ops.aten.log_sigmoid_backward(x, y, x),
        lambda x, y: torch.ops.aten.soft_margin_loss_backward(x.sum(), x, y, 1),
        lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), reduction="none"),
        lambda x, y: torch.ops.aten.binary_cross_entropy_backward(x.sum(), x, y),
        lambda x, y: torch.ops.aten._adaptive_avg_pool2d_backward(x, y),
        lambda x, y: torch.ops.aten.avg_pool2d_backward(x, y, [1], [1], [0], False, True, None),
        lambda x, y: torch.ops.aten.reflection_pad3d(x, [1] * 6),
        lambda x, y: torch.ops.aten.replication_pad3d_backward(x, y, [0] * 6),
        lambda x, y: torch.native_batch_norm(x * y, None, None, None, None, True, 0.1, 1e-5)[0],
        lambda x, y: torch.ops.aten.native_batch_norm_backward(
            x, y, None, None, None, x[0, :, 0, 0], x[0, :, 0, 0], True, 1e-5, [True, False, False]
        )[0],
        lambda x, y: F.rrelu(x),
    ],
)
def test_a_kernel_asks_the_operands_that_it_asks_on_the_cpu(call):
    x = torch.rand(2, 3, 4, 5)
    for forms in [(0, CL), (CL, 0)]:
        operands = [x.contiguous(memory_format=form) if form else x for form in forms]
        expected = pytree.tree_map(torch.Tensor.stride, call(*operands))
        actual = call(*(o.to("jax") for o in operands))
        assert pytree.tree_map(torch.Tensor.stride, actual) == expected


def _channels_inside(x: Tensor) -> Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


@pytest.mark.parametrize(
    ("rank", "dtype", "operand"),
    [
        (3, torch.float32, "input"),
        (3, torch.float32, "kernel"),
        (4, torch.float32, "gradient"),
        (5, torch.float32, "input"),
        (5, torch.float64, "kernel"),
    ],
)
def test_convolutions_lie_as_on_the_cpu(rank: int, dtype: torch.dtype, operand: str) -> None:
    """Some kernels of the CPU have no `channels_last` form, and none asks how a gradient lies."""

    def run(device: str) -> list[tuple[int, ...]]:
        space = (5, 4, 3)[: rank - 2]
        operands = {"input": (2, 4, *space), "kernel": (6, 4, *[3] * len(space))}
        operands["gradient"] = (2, 6, *space)
        made = {name: torch.ones(shape, dtype=dtype) for name, shape in operands.items()}
        made[operand] = _channels_inside(made[operand])
        x, kernel, gradient = (t.to(device) for t in made.values())
        x.requires_grad_(), kernel.requires_grad_()
        convolve = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[rank]
        y = convolve(x, kernel, padding=1)
        return [t.stride() for t in (y, *torch.autograd.grad(y, (x, kernel), gradient))]

    assert run("jax") == run("cpu")


def test_a_volume_without_a_batch_is_pooled_in_channels_last():
    def strides(device: str) -> list[tuple[int, ...]]:
        x = torch.arange(256.0).reshape(4, 4, 4, 4).to(device).permute(3, 0, 1, 2)
        pooled = [
            y.stride()
            for volume in (x, x[None], x.contiguous())
            for y in F.max_pool3d(volume, 2, return_indices=True)
        ]
        return [*pooled, F.avg_pool3d(x, 2).stride()]

    assert strides("jax") == strides("cpu")


HEADS_INSIDE = (0, 2, 1, 3)
WIDTH_OUTSIDE = (3, 2, 1, 0)


@pytest.mark.parametrize(
    ("shape", "order", "masked"),
    [
        ((2, 3, 5, 4), HEADS_INSIDE, False),
        ((2, 3, 5, 4), HEADS_INSIDE, True),
        ((2, 3, 5, 4), WIDTH_OUTSIDE, False),
        ((3, 5, 4), (1, 0, 2), False),
        ((5, 4), (1, 0), False),
    ],
)
def test_attention_lies_as_the_query_where_the_kernel_of_the_cpu_is_fused(shape, order, masked):
    x = torch.ones([shape[axis] for axis in order]).permute(
        [order.index(a) for a in range(len(order))]
    )
    mask = torch.ones(5, 5, dtype=torch.bool) if masked else None
    expected = F.scaled_dot_product_attention(x, x, x, attn_mask=mask).stride()
    ours = x.to("jax")
    assert ours.stride() == x.stride()
    mask = mask if mask is None else mask.to("jax")
    for _ in range(2):
        assert F.scaled_dot_product_attention(ours, ours, ours, attn_mask=mask).stride() == expected


def test_an_operator_whose_new_values_do_not_fit_writes_nothing():
    x, moment = torch.ones(3, device="jax"), torch.ones(3, device="jax")
    with pytest.raises(RuntimeError, match="doesn't match the shape of the result"):
        torch._fused_adam_(
            *([x], [torch.ones(2, 3, device="jax")], [moment], [torch.ones(3, device="jax")], []),
            [torch.tensor(1.0, device="jax")],
            lr=0.1,
            beta1=0.9,
            beta2=0.99,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
    assert x.tolist() == moment.tolist() == [1.0, 1.0, 1.0]


def test_angles_of_complex_numbers_are_row_major():
    for dtype in (torch.complex64, torch.float32):
        x = torch.ones(2, 3, 4, dtype=dtype).transpose(0, 2)
        for _ in range(3):  # the last call takes the fast path
            assert torch.angle(x.to("jax")).stride() == torch.angle(x).stride()
