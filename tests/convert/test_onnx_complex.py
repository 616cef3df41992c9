"""Complex numbers become pairs of real ones in ONNX."""

from typing import Any

import pytest
import torch
from torch import Tensor

import calque
from calque.convert import ConversionError, to_onnx
from tests.convert.test_onnx import agree

WEIGHT = torch.complex(torch.arange(3.0) - 1, torch.tensor([2.0, 0.5, -3.0]))
WINDOW = torch.hann_window(16)


def spectrogram(x: Tensor) -> Tensor:
    return torch.stft(x, 16, 4, window=WINDOW, return_complex=True)


def rotated(x: Tensor) -> Tensor:
    """Returns positions rotated as in RoPE."""
    turns = torch.polar(torch.ones(5, 3), torch.outer(torch.arange(5.0), torch.arange(3.0)))
    pairs = torch.view_as_complex(x.reshape(2, 5, 3, 2))
    return torch.view_as_real(pairs * turns).flatten(2)


def arithmetic(x: Tensor) -> tuple[Tensor, ...]:
    a, b = torch.complex(x, x + 1), torch.complex(x.sin(), x)
    found = (a * b, a / (b + 0.1), 1j * x - (3 + 1j), (1j * x).exp(), (a + 0.1).log(), a**2, x / a)
    return (*map(torch.view_as_real, found), a.abs(), a.angle(), a.conj().imag * 1)


def shaped(x: Tensor) -> tuple[Tensor, ...]:
    z = x * WEIGHT
    parts = (
        torch.cat([z, z.conj(), torch.arange(3)[None]]).flip(0),
        torch.where(x > 0, z, 1.0),
        z.masked_fill(x > 0, 2.0)[..., 1:].reshape(-1),
        z.unbind(0)[1],
        torch.stack([z, x + 0j]).sum(-1),
        torch.einsum("ab,cb->ac", z, z.conj()),
        z @ x.mT.to(torch.complex64),
        x.double() * WEIGHT,
        torch.zeros_like(z) + WEIGHT.sqrt(),  # what depends on no input is computed
    )
    return tuple(map(torch.view_as_real, parts))


@pytest.mark.parametrize(
    ("program", "shape"),
    [
        (arithmetic, (2, 3)),
        (shaped, (2, 3)),
        (rotated, (2, 5, 6)),
        (lambda x: spectrogram(x).abs().clamp(1e-5).log(), (2, 64)),
        (lambda x: torch.istft(spectrogram(x) * 2, 16, 4, window=WINDOW), (2, 64)),
    ],
    ids=["arithmetic", "shapes", "rotations", "spectrogram", "signal"],
)
def test_complex_numbers_agree(program: Any, shape: tuple[int, ...]) -> None:
    agree(program, torch.randn(shape))


@pytest.mark.parametrize("size", [1, 2, 5, 16, 37, 97, 400])
def test_fourier_transforms_agree(size: int) -> None:
    def there(x: Tensor) -> tuple[Tensor, ...]:
        whole = torch.fft.fft(torch.complex(x, x.flip(0)))
        return torch.view_as_real(torch.fft.rfft(x)), whole.real, torch.fft.rfft(x).angle()

    def back(x: Tensor) -> tuple[Tensor, ...]:
        z = torch.view_as_complex(x)
        return torch.fft.irfft(z, n=size), torch.fft.ifft(z, norm="ortho").imag

    agree(there, torch.randn(2, size))
    agree(back, torch.randn(2, size // 2 + 1, 2))


def test_fourier_transforms_of_several_axes_agree() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        folded = torch.fft.irfft2(torch.fft.rfft2(x) * 2, s=(7, 9))
        return folded, torch.fft.fft2(x).abs(), torch.fft.ifftn(x + 0j, norm="ortho").real

    agree(program, torch.randn(3, 7, 9))


def test_complex_numbers_without_a_form_are_listed_with_their_lines() -> None:
    with pytest.raises(ConversionError, match=r"aten.sqrt.default at .*test_onnx_complex.py:\d+"):
        to_onnx(calque.record(lambda x: (x + 0j).sqrt().real, torch.ones(2)))
    with pytest.raises(ConversionError, match="the result: return torch.view_as_real"):
        to_onnx(calque.record(lambda x: x * 1j, torch.ones(2)))
    with pytest.raises(ConversionError, match="the input x"):
        to_onnx(calque.record(lambda x: x.real, WEIGHT))
