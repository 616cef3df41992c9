"""`torch.jax`: the module that PyTorch expects of a device, and the hooks behind it."""

import os
from typing import Any

import jax
import torch

from calque.device.backend import backward_errors, forks
from calque.device.memory import rng
from calque.device.runtime import interrupts
from calque.device.runtime.compile_cache import get_max_programs as get_max_programs
from calque.device.runtime.compile_cache import set_max_programs as set_max_programs

_initialized = True


def is_available() -> bool:
    """Whether the device can be used: always."""
    return True


def is_initialized() -> bool:
    """Whether the device is set up: always."""
    return True


def device_count() -> int:
    """One: "jax" is JAX's default device; several are used through a mesh."""
    return 1


def current_device() -> int:
    """The index of the device in use: 0."""
    return 0


def set_device(device: Any) -> None:
    """Accept device 0.

    Raises:
        RuntimeError: any other index.
    """
    index = _index(device)
    if index != 0:
        raise RuntimeError(f"the jax device has index 0 only, not {index}")


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    return torch.device(device).index or 0


class device:
    """A context in which a device of index 0 is current: it always is.

    Raises:
        RuntimeError: any other index.
    """

    def __init__(self, device: Any = None) -> None:
        self.idx = 0
        if device is not None:
            set_device(device)

    def __enter__(self) -> "device":
        return self

    def __exit__(self, *_: object) -> None:
        return None


def synchronize(device: Any = None) -> None:
    """Wait until all work given to JAX's devices so far is done."""
    for one in jax.local_devices():
        jax.device_put(0, one).block_until_ready()
    jax.effects_barrier()


def get_device_name(device: Any = None) -> str:
    """JAX's name of the device: "cpu", "NVIDIA H100", "TPU v4"."""
    return jax.local_devices()[0].device_kind


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that autocast may use."""
    return [torch.bfloat16, torch.float16]


def manual_seed(seed: int) -> None:
    """Seed the device's random numbers."""
    rng.manual_seed(int(seed))


manual_seed_all = manual_seed


def initial_seed() -> int:
    """The seed in use."""
    return rng.state.seed


def seed() -> int:
    """Seed from the operating system's entropy; gives the seed."""
    value = int.from_bytes(os.urandom(8), "little")
    rng.manual_seed(value)
    return value


def get_rng_state(device: Any = "jax") -> torch.Tensor:
    """The random state, as a CPU tensor of 16 bytes."""
    return rng.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "jax") -> None:
    """Restore what `get_rng_state` gave."""
    rng.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The random state of each device: one."""
    return [rng.get_state()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Restore what `get_rng_state_all` gave."""
    rng.set_state(new_states[0])


def _is_in_bad_fork() -> bool:
    return forks.is_bad()


def _lazy_init() -> None:
    return None


def memory_stats(device: Any = None) -> dict[str, int]:
    """JAX's memory figures of the device in bytes; empty where JAX has none (CPU)."""
    return dict(jax.local_devices()[0].memory_stats() or {})


def memory_allocated(device: Any = None) -> int:
    """Bytes in use: the backend's figure, or the sum of the live arrays where it has none."""
    stats = memory_stats()
    if "bytes_in_use" in stats:
        return stats["bytes_in_use"]
    return sum(array.nbytes for array in jax.live_arrays())


def max_memory_allocated(device: Any = None) -> int:
    """The peak of the bytes in use.

    Raises:
        RuntimeError: the backend keeps no peak (the CPU's does not).
    """
    stats = memory_stats()
    if "peak_bytes_in_use" not in stats:
        raise RuntimeError(f"JAX's {jax.default_backend()} backend keeps no peak of its memory")
    return stats["peak_bytes_in_use"]


def reset_peak_memory_stats(device: Any = None) -> None:
    """Not to be had: JAX keeps its peak for the life of the process.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError("JAX's figures of peak memory cannot be reset")


def empty_cache() -> None:
    """Nothing to do: XLA manages its own memory."""


class Hooks(torch._C._acc.PrivateUse1Hooks):
    """What PyTorch asks of the accelerator."""

    def is_available(self) -> bool:
        return True

    def has_primary_context(self, device_index: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class Guard(torch._C._acc.DeviceGuard):
    """Tells PyTorch the type of the device."""

    type_ = staticmethod(interrupts.hold(backward_errors.device_type))  # type: ignore[assignment]
