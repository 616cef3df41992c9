"""Hooks that `import calque` installs; a mesh of type "jax" loads the rest of this package.

The hooks import nothing. `torch.distributed` is unchanged until such a mesh, or a process group
with the backend "calque", is requested.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from calque.device.runtime.imports import when_imported


def install() -> None:
    """Detect meshes of type "jax" and process groups of the backend "calque"."""
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

    for name, act in _TRANSFORMERS.items():
        when_imported(name, act)


def _plans(mixin: Any) -> None:
    """Make the plans of transformers models work on the device."""
    ours, kind = _hugging_face(), mixin.DistributedMixin
    _wrap(mixin.DistributedConfig, "_resolve_parallelism", ours.sizes)
    _wrap(mixin, "initialize_distributed_mesh", ours.meshes(mixin.TransformersDeviceMesh))
    _wrap(mixin, "apply_tensor_parallelism", ours.tensor_parallel)
    _wrap(mixin, "apply_fully_sharded_data_parallelism", ours.fully_sharded)
    _wrap(kind, "gather_sharded_state_dict_for_save", ours.gathering)


_TRANSFORMERS: dict[str, Callable[[Any], None]] = {
    "transformers.distributed.mixin": _plans,
    "transformers.core_model_loading": lambda module: _wrap(
        module, "set_param_for_module", _hugging_face().loading
    ),
    "transformers.modeling_utils": lambda module: _wrap(
        module, "_load_parameter_into_model", _hugging_face().loading
    ),
}


def _wrap(holder: object, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Wrap a function, if this release of transformers has it."""
    if hasattr(holder, name):
        setattr(holder, name, wrapper(getattr(holder, name)))


def _hugging_face() -> Any:
    return importlib.import_module("calque.distributed.hugging_face")


def _front() -> Any:
    return importlib.import_module("calque.distributed.dispatch_patches")


def _group(*args: Any) -> Any:
    return _front().make_group(*args)
