"""`torch.jax`: the module that PyTorch expects of a device, and the hooks behind it."""

import os
from typing import Any

import jax
import torch

from calque.device.backend import backward_errors, forks, peak_memory
from calque.device.backend.streams import Event as Event
from calque.device.backend.streams import Stream as Stream
from calque.device.backend.streams import current_stream as current_stream
from calque.device.backend.streams import default_stream as default_stream
from calque.device.backend.streams import set_stream as set_stream
from calque.device.backend.streams import stream as stream
from calque.device.backend.streams import synchronize as synchronize
from calque.device.memory import rng
from calque.device.runtime import held_functions, host_memory
from calque.device.runtime.compile_cache import get_max_programs as get_max_programs
from calque.device.runtime.compile_cache import set_max_programs as set_max_programs
from calque.upstream import torch_c

_initialized = True


def is_available() -> bool:
    """Returns True if the device can be used: always."""
    return True


def is_initialized() -> bool:
    """Returns True if the device is set up: always."""
    return True


def device_count() -> int:
    """Returns 1: "jax" is JAX's default device; several devices are used through a mesh."""
    return 1


def current_device() -> int:
    """Returns the index of the current device: 0."""
    return 0


def set_device(device: object) -> None:
    """Accepts device 0 and, if there are several processes, the process's local rank.

    Scripts for `torchrun` call `set_device(local_rank)` to select the process's own device.

    Raises:
        RuntimeError: any other index.
    """
    index = _index(device)
    own = int(os.environ.get("LOCAL_RANK", "0")) if jax.distributed.is_initialized() else 0
    if index not in (0, own):
        raise RuntimeError(f"the jax device has only index 0, not {index}")


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    return torch.device(device).index or 0


class device:
    """A context for the device of index 0, which is always current.

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


def get_device_name(device: object = None) -> str:
    """Returns JAX's name of the device: "cpu", "NVIDIA H100", "TPU v4"."""
    return jax.local_devices()[0].device_kind


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that autocast may use."""
    return [torch.bfloat16, torch.float16]


def manual_seed(seed: int) -> None:
    """Seed the device's random numbers; does nothing in a forked process."""
    if not forks.is_bad():
        rng.manual_seed(int(seed))


manual_seed_all = manual_seed


def initial_seed() -> int:
    """Returns the seed in use."""
    return rng.state.seed


def seed() -> int:
    """Seeds from the operating system's entropy, and returns the seed."""
    value = int.from_bytes(os.urandom(8), "little")
    rng.manual_seed(value)
    return value


def get_rng_state(device: object = "jax") -> torch.Tensor:
    """Returns the random state, as a CPU tensor of 16 bytes."""
    return rng.get_state()


def set_rng_state(new_state: torch.Tensor, device: object = "jax") -> None:
    """Restores a state from `get_rng_state`."""
    rng.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns a list with the random state of the one device."""
    return [rng.get_state()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Restores states from `get_rng_state_all`."""
    rng.set_state(new_states[0])


def _is_in_bad_fork() -> bool:
    return forks.is_bad()


def _lazy_init() -> None:
    return None


def memory_stats(device: object = None) -> dict[str, int]:
    """Returns JAX's memory figures for the device, in bytes; empty if JAX has none (on CPUs)."""
    return dict(jax.local_devices()[0].memory_stats() or {})


def memory_allocated(device: object = None) -> int:
    """Returns the bytes in use, according to the backend or, if it has no figures, the live
    arrays.
    """
    stats = memory_stats()
    if "bytes_in_use" in stats:
        return stats["bytes_in_use"]
    return sum(array.nbytes for array in jax.live_arrays())


def max_memory_allocated(device: object = None) -> int:
    """Returns the peak of the bytes in use, since `reset_peak_memory_stats` if that can be
    determined.

    This is JAX's figure if its backend has one; on CPUs, it is the peak of the process's resident
    memory.
    """
    return peak_memory.peak(memory_stats(), memory_allocated())


def reset_peak_memory_stats(device: object = None) -> None:
    """Starts measuring a new peak.

    JAX keeps one peak for the lifetime of the process. Until it is exceeded, the reported peak is
    the memory in use at the time of the query.
    """
    peak_memory.reset(memory_stats())


def get_memory_info(device: object = None) -> tuple[int, int]:
    """Returns the free and the total bytes of the device; on the CPU, of the machine."""
    return peak_memory.free_and_total(memory_stats())


mem_get_info = get_memory_info


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns True: bfloat16 can always be used, though it is not faster on every device."""
    return True


def empty_cache() -> None:
    """Returns free memory of the host to the system after `calque.keep_host_memory()`; does nothing
    otherwise, because XLA manages its own memory.
    """
    host_memory.return_host_memory()


class Hooks(torch_c.acc.PrivateUse1Hooks):
    """The hooks through which PyTorch queries the accelerator."""

    def is_available(self) -> bool:
        return True

    def has_primary_context(self, device_index: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class DeviceGuard(torch_c.acc.DeviceGuard):
    """The device guard, which returns the type of the device."""

    type_: Any = staticmethod(held_functions.hold(backward_errors.device_type))
