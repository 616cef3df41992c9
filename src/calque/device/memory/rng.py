"""The device's random state: a seed and an offset, like CUDA's.

Each random operator takes one offset, so no key is used twice: the key of draw `n` is
`fold_in(key(seed), n)`. While `calque.jit` traces, draws are counted from an offset that is an
input of the program.
"""

import itertools
import struct
import threading

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from calque.device.memory.cell import active
from calque.ops.table.random_bits import as_jaxs, wrapped

DEFAULT_SEED = 0


class RandomState:
    """A seed and the number of draws taken so far."""

    def __init__(self, seed: int = DEFAULT_SEED) -> None:
        self._lock = threading.Lock()
        self.restore(seed, 0)

    def restore(self, seed: int, offset: int) -> None:
        """Set the state."""
        with self._lock:
            self.seed: int = seed % 2**64
            self._offsets = itertools.count(offset)
            self._next = offset

    def take(self, count: int = 1) -> tuple[int, int]:
        """Returns the seed and the first of `count` reserved offsets."""
        with self._lock:
            first = self._next
            self._next = first + count
            return self.seed, first

    def give_back(self, taken: tuple[int, int], count: int) -> None:
        """Undo a `take` whose numbers were not used, unless there have been draws or a new seed
        since.
        """
        seed, first = taken
        with self._lock:
            if (self.seed, self._next) == (seed, first + count):
                self._next = first

    @property
    def offset(self) -> int:
        """The number of draws taken so far."""
        return self._next


state: RandomState = RandomState()


def pack(seed: int, offset: int) -> np.ndarray:
    """Returns a seed and an offset as an array for programs."""
    return np.array([seed, offset], dtype=np.uint64)


def key_of(packed: Array, ours: bool = True) -> Array:
    """Returns the JAX key of a packed seed and offset (see `pack`).

    Args:
        packed: the packed seed and offset.
        ours: whether the key is for calque's rules; otherwise, it has JAX's own implementation.
    """
    seed, offset = packed[0], packed[1]
    low = jnp.uint64(0xFFFFFFFF)
    key = wrapped(jnp.stack([seed >> 32, seed & low]).astype(jnp.uint32))
    key = jax.random.fold_in(key, (offset >> 32).astype(jnp.uint32))
    key = jax.random.fold_in(key, (offset & low).astype(jnp.uint32))
    return key if ours else as_jaxs(key)


def draw() -> Array | np.ndarray:
    """Returns the packed key of the next draw, concrete in eager mode and traced in a trace."""
    trace = active.trace
    if trace is not None:
        return trace.draw()
    return pack(*state.take())


def manual_seed(seed: int) -> None:
    """Seed the device. `torch.manual_seed` calls this too."""
    trace = active.trace
    if trace is not None:
        trace.set_random(pack(seed % 2**64, 0))
        return
    state.restore(seed, 0)


def get_state() -> torch.Tensor:
    """Returns the state as 16 bytes on the CPU: seed and offset, little-endian, like CUDA's."""
    trace = active.trace
    seed, offset = (state.seed, state.offset) if trace is None else trace.get_random()
    return torch.frombuffer(bytearray(struct.pack("<QQ", seed, offset)), dtype=torch.uint8)


def set_state(new_state: torch.Tensor) -> None:
    """Restore a state from `get_state`.

    Raises:
        RuntimeError: it is not a CPU tensor of 16 bytes.
    """
    if new_state.dtype != torch.uint8 or new_state.numel() != 16 or new_state.device.type != "cpu":
        raise RuntimeError("the RNG state of the jax device is a CPU uint8 tensor of 16 elements")
    seed, offset = struct.unpack("<QQ", bytes(new_state.tolist()))
    trace = active.trace
    if trace is None:
        state.restore(seed, offset)
    else:
        trace.restore_random(seed, offset)
