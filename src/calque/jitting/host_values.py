"""The bits of CPU tensors, read without a trace or a mode noticing."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from calque.upstream import torch_c

_MODES = torch_c.DispatchKeySet(torch_c.DispatchKey.Python)


@contextmanager
def without_modes() -> Iterator[None]:
    """A context manager in which no mode sees functions and operators."""
    with torch_c.DisableTorchFunction(), torch_c.ExcludeDispatchKeyGuard(_MODES):
        yield


def checksum_of(tensor: torch.Tensor) -> int:
    """Returns a checksum of a CPU tensor's values."""
    with without_modes():
        return zlib.crc32(_bytes(tensor).numpy().data)


def has_same_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns True if two CPU tensors have the same bits: 0.0 differs from -0.0, and NaN equals
    NaN.
    """
    if tensor.dtype != other.dtype or tensor.shape != other.shape or tensor.layout != other.layout:
        return False
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return torch.equal(tensor, other)
    return torch.equal(_bytes(tensor), _bytes(other))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    flat = plain.reshape(-1)
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)  # of one element, any stride
