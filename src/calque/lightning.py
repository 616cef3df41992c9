"""The device "jax" for Lightning: after `import calque.lightning`, `Trainer(..., strategy="jax")`.

Lightning keeps registries of accelerators and strategies; ours are entered into those of
`lightning.pytorch` and of `pytorch_lightning`, whichever is imported already, or else of the one
that is installed.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import torch

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _imported() -> list[ModuleType]:
    found = [sys.modules[name] for name in _PACKAGES if name in sys.modules]
    if found:
        return found
    for name in _PACKAGES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return [importlib.import_module(name)]
    raise ImportError("calque.lightning needs Lightning: pip install lightning")


def _register(package: ModuleType) -> None:
    accelerators = importlib.import_module(f"{package.__name__}.accelerators")
    strategies = importlib.import_module(f"{package.__name__}.strategies")
    precision = importlib.import_module(f"{package.__name__}.plugins.precision")

    class JaxAccelerator(accelerators.Accelerator):
        """One device: JAX's default one."""

        def setup_device(self, device: torch.device) -> None:
            if device.type != "jax":
                raise ValueError(f"the accelerator 'jax' has no device {device}")

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return torch.accelerator.memory_stats()

        def teardown(self) -> None:
            """Nothing to do: arrays are freed with their tensors."""

        @staticmethod
        def parse_devices(devices: Any) -> int:
            if devices not in (1, "1", "auto", -1, "-1", [0]):
                raise ValueError(f"the accelerator 'jax' is one device, not {devices!r}")
            return 1

        @staticmethod
        def get_parallel_devices(devices: Any) -> list[torch.device]:
            return [torch.device("jax", 0)]

        @staticmethod
        def auto_device_count() -> int:
            return 1

        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def name() -> str:
            return "jax"

    class JaxStrategy(strategies.SingleDeviceStrategy):
        """Lightning's strategy for one device, on "jax"."""

        strategy_name = "jax"

        def __init__(self, accelerator: Any = None, **settings: Any) -> None:
            super().__init__("jax:0", accelerator or JaxAccelerator(), **settings)

        @property
        def precision_plugin(self) -> Any:
            """What decides the dtypes."""
            return super().precision_plugin

        @precision_plugin.setter
        def precision_plugin(self, plugin: Any) -> None:
            if isinstance(plugin, precision.MixedPrecision):
                _move(plugin)
            strategies.SingleDeviceStrategy.precision_plugin.fset(self, plugin)

    if "jax" not in accelerators.AcceleratorRegistry:
        accelerators.AcceleratorRegistry.register("jax", JaxAccelerator)
        strategies.StrategyRegistry.register("jax", JaxStrategy)


def _move(plugin: Any) -> None:
    """Have a plugin for mixed precision cast, and scale losses, on the device.

    Lightning makes it for CUDA where it does not know the accelerator.
    """
    plugin.device = "jax"
    scaler = plugin.scaler
    if scaler is None or getattr(scaler, "_device", "jax") == "jax":
        return
    plugin.scaler = torch.amp.GradScaler("jax")  # one for CUDA switches itself off without CUDA
    if scaler.is_enabled():
        plugin.scaler.load_state_dict(scaler.state_dict())


for _package in _imported():
    _register(_package)
