"""The entry point that PyTorch runs when it is imported: it registers a name and imports nothing.

`torch.load` of a file with tensors of the device "jax" then says which import is missing. The
device itself is not registered: PyTorch has one place for devices of other packages, and a program
that does not import calque may want it for another.
"""

from typing import Any

from torch._C import _get_privateuse1_backend_name  # torch is loaded: it calls this module
from torch.serialization import register_package

_PRIORITY = 99  # asked after PyTorch's own devices, and before its error


def register() -> None:
    """Tell `torch.load` what to say (the entry point of the group `torch.backends`)."""
    register_package(_PRIORITY, lambda storage: None, _refuse)


def _refuse(storage: Any, location: str) -> None:
    if location.partition(":")[0] == "jax" and _get_privateuse1_backend_name() != "jax":
        raise RuntimeError(
            f"the file has tensors on the device {location!r}, which `import calque` registers: "
            'import calque before torch.load, or load with map_location="cpu"'
        )
