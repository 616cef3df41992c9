"""Registers the device "jax" with PyTorch, once, when calque is imported."""

import sys

import torch

from calque.device.backend import (
    accelerator,
    backward_errors,
    data_parallel,
    forks,
    interop,
    loaded_state,
    moves,
    printing,
    queues,
    signals,
    streams,
    torch_jax,
)
from calque.device.kernels import (
    allocations,
    assumed_checks,
    attention_backend,
    autocast,
    binding,
    composites,
    copies,
    fake_layouts,
    indices,
    installed_release,
    refused_kinds,
    sequence_lengths,
    storage,
    views,
)
from calque.device.kernels.fallback import fall_back
from calque.device.runtime import (
    async_dispatch,
    code_generation,
    collection_tracebacks,
    persistent_cache,
    shared_contexts,
    sizes,
)
from calque.device.validation import factorizations
from calque.upstream import torch_c
from calque.upstream.torch_internals import setup_privateuseone_for_python_backend

_libraries: list[torch.library.Library] = []


def register() -> None:
    """Make `torch.device("jax")` a device of PyTorch (a second call does nothing).

    Raises:
        RuntimeError: another package has taken PyTorch's slot for out-of-tree devices.
    """
    if _libraries:
        return
    taken = torch_c.get_privateuse1_backend_name()
    if taken != "privateuseone":
        raise RuntimeError(
            f"PyTorch has one slot for out-of-tree devices, and {taken!r} has taken it already: "
            "import calque in a process without that package"
        )
    installed_release.ask()
    setup_privateuseone_for_python_backend(
        "jax", sys.modules[torch_jax.__name__], torch_jax.Hooks(), torch_jax.DeviceGuard()
    )
    aten = torch.library.Library("aten", "IMPL")
    by_hand = (
        views,
        allocations,
        copies,
        indices,
        attention_backend,
        composites,
        factorizations,
        streams,
    )
    binding.bind(aten, {name: k for part in by_hand for name, k in part.kernels().items()})
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(binding.untraced(fall_back), "PrivateUse1")
    for key, refuse in refused_kinds.fallbacks().items():
        everything.fallback(binding.untraced(refuse), key)
    composites.install(aten)
    assumed_checks.install(aten)
    sequence_lengths.install(aten)
    autocast.install(aten, everything)
    for part in (
        attention_backend,
        fake_layouts,
        storage,
        queues,
        moves,
        loaded_state,
        data_parallel,
        printing,
        interop,
        accelerator,
        forks,
        async_dispatch,
        code_generation,
        collection_tracebacks,
        persistent_cache,
        shared_contexts,
        backward_errors,
        signals,
        sizes,
    ):
        part.install()
    _libraries.extend((aten, everything))
