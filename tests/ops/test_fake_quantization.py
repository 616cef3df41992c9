"""Fake quantization, as PyTorch's CPU kernels round, clamp and observe."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization as quantization
import torch.nn.functional as F
from torch import nn

import calque

aten = torch.ops.aten
SPECIAL = [math.nan, math.inf, -math.inf, 1e30, -1e30, 0.06, 0.14, 0.26, -0.01, 0.0, -0.0, 3.0]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def numbers(dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([torch.tensor(SPECIAL), 9 * torch.randn(40)]).to(dtype)


def both(function: Callable[..., Any], *given: Any) -> list[list[Any]]:
    """The results and written arguments on the CPU, eagerly on the device and under jit."""
    outcomes = []
    for device, run in (("cpu", function), ("jax", function), ("jax", calque.jit(function))):
        moved = [
            t.clone(memory_format=torch.preserve_format).to(device)
            if isinstance(t, torch.Tensor)
            else t
            for t in given
        ]
        results = run(*moved)
        results = [results] if isinstance(results, torch.Tensor) else list(results)
        outcomes.append([t.cpu() for t in (*results, *moved) if isinstance(t, torch.Tensor)])
    return outcomes


def assert_equal(function: Callable[..., Any], *given: Any, **tolerance: Any) -> None:
    want, *others = both(function, *given)
    tolerance = tolerance or {"rtol": 0, "atol": 0}
    for found in others:
        torch.testing.assert_close(found, want, equal_nan=True, **tolerance)
        assert [t.stride() for t in found] == [t.stride() for t in want]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_by_one_scale(dtype: torch.dtype) -> None:
    x = numbers(dtype)
    assert_equal(aten.fake_quantize_per_tensor_affine_cachemask, x, 0.1, 3, -128, 127)
    assert_equal(aten.fake_quantize_per_tensor_affine_cachemask, x, 0.037, 0, 0, 15)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("enabled", [1, 0])
def test_by_a_scale_in_a_tensor(dtype: torch.dtype, enabled: int) -> None:
    function = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    scale, on = torch.tensor([0.1]), torch.tensor([enabled])
    for point in (torch.int32, torch.float32):
        zero = torch.tensor([3.4]).to(point)
        assert_equal(function, numbers(dtype), scale, zero, on, -128, 127)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("point", [torch.int32, torch.float32, torch.float16], ids=str)
def test_by_channel(dtype: torch.dtype, point: torch.dtype) -> None:
    scale, zero = torch.tensor([0.1, 0.037]), torch.tensor([3.4, 0.0]).to(point)
    x = numbers(dtype)[:, None].repeat(1, 2)
    assert_equal(aten.fake_quantize_per_channel_affine_cachemask, x, scale, zero, 1, -128, 127)


@pytest.mark.parametrize("zero", [3.4, 3.5, 2.5, -0.6, -2.7, 400.0])
def test_learned_scales_and_zero_points(zero: float) -> None:
    x, scale, point = numbers(torch.float32), torch.tensor([0.1]), torch.tensor([zero])
    assert_equal(aten._fake_quantize_learnable_per_tensor_affine, x, scale, point, -128, 127, 0.5)
    channels = x[None].repeat(2, 1), scale.repeat(2), torch.cat([point, point / 2])
    by_channel = aten._fake_quantize_learnable_per_channel_affine
    assert_equal(by_channel, *channels, 0, -128, 127, 0.5)
    x, close = x[5:], {"rtol": 1e-5, "atol": 1e-4}
    backward = aten._fake_quantize_learnable_per_tensor_affine_backward
    assert_equal(backward, torch.randn_like(x), x, scale, point, -128, 127, 0.5, **close)
    backward = aten._fake_quantize_learnable_per_channel_affine_backward
    channels = x[None].repeat(2, 1), *channels[1:]
    assert_equal(backward, torch.randn_like(channels[0]), *channels, 0, -128, 127, 0.5, **close)


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("observes", "quantizes"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_the_fused_observer(channels: bool, symmetric: bool, observes: int, quantizes: int) -> None:
    shape = (3,) if channels else ()
    low, high = torch.full(shape, math.inf), torch.full(shape, -math.inf)
    scale, zero = torch.ones(shape or 1), torch.zeros(shape or 1, dtype=torch.int32)
    on, quantized = torch.tensor([observes]), torch.tensor([quantizes])

    def twice(x: torch.Tensor, *rest: Any) -> Any:
        observe = aten._fused_moving_avg_obs_fq_helper
        first = observe(x, *rest, 0.1, 0, 127, 0, channels, symmetric)
        return *first, *observe(2 * x, *rest, 0.1, 0, 127, 0, channels, symmetric)

    state = on, quantized, low, high, scale, zero
    assert_equal(twice, 5 * torch.randn(3, 7), *state, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("values", [[0.0, 0.0], [1e-7, 0.0], [1e-7, -3e-7], [1.0, math.nan]])
def test_scales_that_are_too_small_or_missing(values: list[float]) -> None:
    on = torch.tensor([1])
    low, high = torch.tensor(math.inf), torch.tensor(-math.inf)
    state = on, on, low, high, torch.ones(1), torch.zeros(1, dtype=torch.int32)
    observe = aten._fused_moving_avg_obs_fq_helper
    assert_equal(observe, torch.tensor(values), *state, 0.1, -128, 127, -1)


def test_the_first_observation_of_channels_resizes_the_state() -> None:
    outcomes = []
    for device in ("cpu", "jax"):
        on, empty = torch.tensor([1]).to(device), torch.tensor([]).to(device)
        state = [empty, empty.clone(), torch.ones(1), torch.zeros(1, dtype=torch.int32)]
        state = [t.to(device) for t in state]
        x = torch.arange(6.0).reshape(2, 3).to(device)
        aten._fused_moving_avg_obs_fq_helper(x, on, on, *state, 0.1, -128, 127, 0, True, True)
        outcomes.append([t.cpu() for t in state])
    torch.testing.assert_close(outcomes[1], outcomes[0])


def test_results_keep_channels_last() -> None:
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    scale, zero = torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3)
    assert_equal(aten.fake_quantize_per_channel_affine_cachemask, x, scale, zero, 1, -128, 127)


REFUSED: list[Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = [
    lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, 0.1, 300, -128, 127),
    lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 128, 127),
    lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z[:1], -128, 127),
    lambda x, s, z: torch.fake_quantize_per_tensor_affine(x.int(), 0.1, 0, -128, 127),
    lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s.double(), z, 0, -128, 127),
    lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z.long(), 0, -128, 127),
    lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s[:1], z, 0, -128, 127),
    lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, -128, 127),
    lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, -2, -128, 127),
    lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z + 300, 0, -128, 127),
]


@pytest.mark.parametrize("call", REFUSED)
def test_refusals_are_those_of_the_cpu(call: Callable[..., Any]) -> None:
    said = []
    for device in ("cpu", "jax"):
        scale, zero = torch.tensor([0.1, 0.2]), torch.zeros(2, dtype=torch.int32)
        with pytest.raises(RuntimeError) as refused:
            call(*(t.to(device) for t in (torch.randn(2, 3), scale, zero)))
        said.append(str(refused.value).splitlines()[0])
    assert said[1].startswith(said[0])


class Net(nn.Module):
    """A quantized block of a convolution, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = quantization.QuantStub()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.relu(self.norm(self.conv(self.quant(x)))).mean((2, 3)))


def _prepared() -> nn.Module:
    torch.manual_seed(0)
    model = Net().train()
    model.qconfig = quantization.get_default_qat_qconfig("qnnpack")  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package is deprecated
        fused = quantization.fuse_modules_qat(model, [["conv", "norm", "relu"]])
        return quantization.prepare_qat(fused)


@pytest.mark.parametrize("mode", ["eager", "jit", "compile"])
def test_training_that_is_aware_of_quantization(mode: str) -> None:
    torch.manual_seed(1)
    x, outcomes = torch.randn(4, 3, 8, 8), []
    for device in ("cpu", "jax"):
        model = _prepared()
        model(x)
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        compiled = mode == "compile" and device == "jax"
        run = torch.compile(model, backend="calque") if compiled else model

        def step(x: torch.Tensor, run: Any = run, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(run(x), torch.tensor([0, 1, 1, 0]).to(x.device))
            loss.backward()
            optimizer.step()
            return loss

        train = calque.jit(step) if mode == "jit" and device == "jax" else step
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            losses = [train((x * k).to(device)).item() for k in (1, 0.8, 1.2)]
        outcomes.append([losses, {k: v.cpu() for k, v in model.state_dict().items()}])
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-4, atol=1e-5)
