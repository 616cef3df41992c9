"""Register the device "jax" with PyTorch; done once, by `import calque`."""

import sys

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from calque.device import (
    accelerator,
    attention,
    autocast,
    binding,
    composites,
    copies,
    factorizations,
    forks,
    indices,
    inlining,
    interop,
    module,
    moves,
    queues,
    quotients,
    raised,
    signals,
    sizes,
    sparse,
    storage,
    validations,
    values,
    views,
)
from calque.device.fallback import fall_back

_libraries: list[torch.library.Library] = []


def register() -> None:
    """Make `torch.device("jax")` a device of PyTorch (a second call does nothing).

    Raises:
        RuntimeError: another package holds PyTorch's slot for out-of-tree devices.
    """
    if _libraries:
        return
    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        raise RuntimeError(
            f"PyTorch has one slot for devices like ours, and {taken!r} holds it already: import "
            "calque in a process without that package"
        )
    _setup_privateuseone_for_python_backend(
        "jax", sys.modules[module.__name__], module.Hooks(), module.Guard()
    )
    aten = torch.library.Library("aten", "IMPL")
    by_hand = (views, copies, indices, attention, factorizations, composites, quotients, values)
    binding.bind(aten, {name: k for part in by_hand for name, k in part.kernels().items()})
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(binding.untraced(fall_back), "PrivateUse1")
    for key in sparse.KEYS:
        everything.fallback(binding.untraced(sparse.refuse), key)
    composites.install(aten)
    validations.install(aten)
    autocast.install(aten, everything)
    for part in (
        attention,
        storage,
        queues,
        moves,
        interop,
        accelerator,
        forks,
        inlining,
        raised,
        signals,
        sizes,
    ):
        part.install()
    _libraries.extend((aten, everything))
