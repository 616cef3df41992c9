"""What is in place from `import calque` on: a mesh of type "jax" brings the rest.

Nothing is loaded for that. `torch.distributed` is as it was until such a mesh, or a process group
with the backend "calque", is asked for.
"""

import functools
import importlib
from typing import Any

import torch


def install() -> None:
    """Notice meshes of type "jax" and process groups of the backend "calque"."""
    if not torch.distributed.is_available():
        return
    kind = torch.distributed.device_mesh.DeviceMesh
    theirs = kind.__init__

    @functools.wraps(theirs)
    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type != "jax":
            theirs(self, device_type, *args, **kwargs)
            return
        _front().make_mesh(theirs, self, *args, **kwargs)

    kind.__init__ = init
    torch.distributed.Backend.register_backend(
        "calque", _group, extended_api=True, devices=["cpu", "jax"]
    )


def _front() -> Any:
    return importlib.import_module("calque.distributed.front")


def _group(*args: Any) -> Any:
    return _front().make_group(*args)
