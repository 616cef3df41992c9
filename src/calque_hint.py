"""The entry point that PyTorch runs when it is imported; it only registers a hint.

`torch.load` of a file with tensors on the device "jax" then names the missing import. The device
itself is not registered, because PyTorch has only one slot for external devices, which a program
without calque may need for another one.
"""

from torch._C import _get_privateuse1_backend_name  # torch is being imported
from torch.serialization import register_package

_PRIORITY = 99  # after PyTorch's own devices, before its error


def register() -> None:
    """Register the hint for `torch.load` (the entry point in the group `torch.backends`)."""
    register_package(_PRIORITY, lambda storage: None, _refuse)


def _refuse(storage: object, location: str) -> None:
    if location.partition(":")[0] == "jax" and _get_privateuse1_backend_name() != "jax":
        raise RuntimeError(
            f"the file has tensors on the device {location!r}, which `import calque` registers: "
            'import calque before torch.load, or load with map_location="cpu"'
        )
