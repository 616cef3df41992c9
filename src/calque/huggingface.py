"""Makes accelerate and transformers use the device "jax": `import calque.huggingface`.

Neither has a registry of devices or compilers; each calls a few functions that know devices by
name. This module replaces these functions. If none of the devices that they know is in use:

- `Accelerator()` and `Trainer` take the device (`ACCELERATE_TORCH_DEVICE`, unless it is set
  already);
- `TrainingArguments(bf16=True)` is accepted;
- `torch_compile_backend="calque"` and `Accelerator(dynamo_backend="calque")` are accepted;
- `Accelerator(mixed_precision="fp16")` raises an error with the remedy.
"""

import functools
import importlib
import importlib.util
import os
from typing import Any

import torch

import calque  # noqa: F401  (registers the device)

_DEVICE = "ACCELERATE_TORCH_DEVICE"
_FP16 = (
    'On the device "jax" write mixed_precision="bf16" (TrainingArguments: bf16=True): accelerate '
    "scales float16 losses only on the devices that it lists, but bfloat16 needs no scaling."
)


def _chosen() -> bool:
    return os.environ.get(_DEVICE, "").partition(":")[0] == "jax"


def _into_accelerate() -> None:
    kinds = importlib.import_module("accelerate.utils.dataclasses").DynamoBackend
    if "CALQUE" not in kinds.__members__:
        ours = str.__new__(kinds, "CALQUE")
        ours._name_ = ours._value_ = "CALQUE"
        kinds._member_map_["CALQUE"] = kinds._value2member_map_["CALQUE"] = ours
        kinds._member_names_.append("CALQUE")
    made = importlib.import_module("accelerate").Accelerator
    if not hasattr(made.__init__, "explained"):
        made.__init__ = _explained(made.__init__)


def _explained(init: Any) -> Any:
    @functools.wraps(init)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except ValueError as error:
            if "fp16" in str(error) and _chosen():
                error.add_note(_FP16)
            raise

    call.explained = True  # pyright: ignore[reportFunctionMemberAccess]
    return call


def _into_transformers() -> None:
    arguments = importlib.import_module("transformers.training_args")
    plain = arguments.is_torch_bf16_gpu_available
    if hasattr(plain, "asks_the_device"):
        return

    @functools.wraps(plain)
    def asked() -> bool:
        return plain() or (_chosen() and torch.jax.is_bf16_supported())

    asked.asks_the_device = True  # pyright: ignore[reportFunctionMemberAccess]
    arguments.is_torch_bf16_gpu_available = asked


if importlib.util.find_spec("accelerate") is None:
    raise ImportError("calque.huggingface needs accelerate: pip install accelerate")
os.environ.setdefault(_DEVICE, "jax")
_into_accelerate()
if importlib.util.find_spec("transformers") is not None:
    _into_transformers()
