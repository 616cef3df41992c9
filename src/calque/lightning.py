"""Adds the device "jax" to Lightning: `import calque.lightning`, `Trainer(..., strategy="jax")`.

With `devices=8` the batch is split over eight devices; each has the whole model ("jax"), or a part
of it ("jax_fsdp"). `JaxStrategy(plan=..., mesh=...)` supports any other placement.

With several processes (`calque launch`, torchrun), the devices and the rows of a batch are those of
all processes: Lightning gives each process its share of the data, and tensors are global.

Ours are registered in Lightning's registries of accelerators and strategies: in those of
`lightning.pytorch` and `pytorch_lightning` if already imported, or else of the installed package.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import jax
import numpy as np
import torch

from calque import sharding
from calque.device.memory.cell import read
from calque.device.runtime.addressable import is_here
from calque.launching import communication, join
from calque.sharding import P, along
from calque.sharding.local import joined
from calque.sharding.mesh import sharding_of
from calque.upstream.torch_internals import tree_map

_Base: Any = object
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _imported() -> list[ModuleType]:
    found = [sys.modules[name] for name in _PACKAGES if name in sys.modules]
    if found:
        return found
    for name in _PACKAGES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return [importlib.import_module(name)]
    raise ImportError("calque.lightning needs Lightning: pip install lightning")


# The registered classes derive from each of these and Lightning's own class.
class _Accelerator(_Base):
    """JAX's devices: the default one, or several."""

    def setup_device(self, device: torch.device) -> None:
        if device.type != "jax":
            raise ValueError(f"the accelerator 'jax' has no device {device}")

    def get_device_stats(self, device: object) -> dict[str, Any]:
        return torch.accelerator.memory_stats()

    def teardown(self) -> None:
        """Nothing to do: arrays are freed with their tensors."""

    @staticmethod
    def parse_devices(devices: object) -> int:
        return _count(devices)

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device("jax", 0)] * devices

    @staticmethod
    def auto_device_count() -> int:
        return len(jax.devices()) if _in_several() else 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "jax"


class _Strategy(_Base):
    """Lightning's strategy for "jax": the model and the batches may be spread over devices.

    With several processes they are spread over the devices of all.

    Args:
        accelerator: Lightning's accelerator.
        plan: how to split parameters over the mesh, as for `shard_module`. By default they are
            replicated.
        mesh: the mesh; by default the Trainer's `devices`, in one axis, "data".
        batch: how to split batches; by default along the mesh's first axis. Tensors that it does
            not divide are replicated.
    """

    strategy_name = "jax"
    accelerator_type: type[Any]  # that of the same package
    mixed_precision: type[Any]

    def __init__(
        self,
        accelerator: Any = None,
        plan: sharding.Plan | None = None,
        mesh: Any = None,
        batch: sharding.Spec | None = None,
        **settings: Any,
    ) -> None:
        several = _in_several()
        super().__init__("jax:0", accelerator, **settings)
        self._plan, self._mesh, self._batch = plan or {}, mesh, batch
        self._devices: list[torch.device] = []
        self.num_nodes = 1
        if several:
            here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            self.global_rank, self.world_size = jax.process_index(), jax.process_count()
            self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
            self.node_rank = self.global_rank // here
            only = importlib.import_module("lightning_utilities.core.rank_zero").rank_zero_only
            only.rank = self.global_rank

    @property
    def accelerator(self) -> Any:
        """The device's accelerator, whichever one Lightning chooses by default."""
        return self._accelerator

    @accelerator.setter
    def accelerator(self, accelerator: object) -> None:
        ours = isinstance(accelerator, self.accelerator_type)
        self._accelerator = accelerator if ours else self.accelerator_type()

    @property
    def parallel_devices(self) -> list[torch.device]:
        """Returns one device for each that the Trainer uses."""
        return self._devices

    @parallel_devices.setter
    def parallel_devices(self, devices: list[Any]) -> None:
        self._devices = devices

    @property
    def is_global_zero(self) -> bool:
        """True in the process that writes files."""
        return self.global_rank == 0

    @property
    def is_distributed(self) -> bool:
        """True if Lightning has to distribute the data among processes."""
        return self.world_size > 1

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Returns the share of the data that this process supplies."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def _configure_launcher(self) -> None:
        self._device_count()  # so that errors are raised when the Trainer is created

    def _device_count(self) -> int:
        count = _count((len(self._devices) or 1) * self.num_nodes)
        if self.world_size > 1 and self._mesh is None and count < len(jax.devices()):
            raise ValueError(
                f"Trainer(devices={len(self._devices) or 1}, num_nodes={self.num_nodes}) runs in "
                f"{self.world_size} processes, which have {len(jax.devices())} devices together, "
                f"and all of them take part. Pass devices={len(jax.devices())}"
            )
        return count

    def model_to_device(self) -> None:
        """Move the model to the device, and spread it over the mesh."""
        super().model_to_device()
        count = self._device_count()
        if self._mesh is None and count > 1:
            self._mesh = sharding.mesh(devices=jax.devices()[:count], data=count)
        if self._mesh is not None:
            sharding.shard_module(self.model, self._plan, self._mesh)

    def batch_to_device(self, *args: Any, **kwargs: Any) -> Any:
        """Move a batch, and split it over the mesh; with several processes, the rows of all."""
        moved = super().batch_to_device(*args, **kwargs)
        if self._mesh is None:
            return moved
        apply = importlib.import_module("lightning_utilities.core.apply_func")
        return apply.apply_to_collection(moved, torch.Tensor, self._split)

    def _split(self, tensor: torch.Tensor) -> torch.Tensor:
        spec = P(self._mesh.axis_names[0]) if self._batch is None else self._batch
        if self.world_size > 1:
            return joined(tensor, spec, self._mesh, or_whole=True)
        try:
            where = sharding_of(spec, tuple(tensor.shape), self._mesh)
        except ValueError:
            return tensor
        return sharding.constrain(tensor, where)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the predictions for a batch; in each process, those for the rows of all
        processes.
        """
        return tree_map(_readable, super().predict_step(*args, **kwargs))

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Does nothing: gradients accumulate without communication."""
        yield

    def barrier(self, name: str | None = None) -> None:
        """Wait for the other processes."""
        communication.barrier(name or "lightning")

    def broadcast(self, obj: object, src: int = 0) -> Any:
        """Returns the object of one process in all processes."""
        return communication.broadcast(obj, src)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Returns whether all processes, or any of them, decided True."""
        found = communication.of_all(np.array([bool(decision)]))
        return bool(found.all() if all else found.any())

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Returns the model's full state."""
        return tree_map(_readable, super().lightning_module_state_dict())

    def optimizer_state(self, optimizer: object) -> dict[str, Any]:
        """Returns an optimizer's full state."""
        return tree_map(_readable, super().optimizer_state(optimizer))

    def teardown(self) -> None:
        """Move the model back to the CPU; with several processes it stays on the mesh."""
        if self.world_size == 1:
            super().teardown()
            return
        self.precision_plugin.teardown()
        self.accelerator.teardown()
        self.checkpoint_io.teardown()

    @property
    def precision_plugin(self) -> Any:
        """The plugin that decides the dtypes."""
        return super().precision_plugin

    @precision_plugin.setter
    def precision_plugin(self, plugin: object) -> None:
        if isinstance(plugin, self.mixed_precision):
            _move(plugin)
        super(_Strategy, type(self)).precision_plugin.fset(self, plugin)


def _register(package: ModuleType) -> Any:
    """Register the device in the registries of a package, and return the strategy's class."""
    accelerators = importlib.import_module(f"{package.__name__}.accelerators")
    strategies = importlib.import_module(f"{package.__name__}.strategies")
    precision = importlib.import_module(f"{package.__name__}.plugins.precision")

    class JaxAccelerator(_Accelerator, accelerators.Accelerator):
        __doc__ = _Accelerator.__doc__

    class JaxStrategy(_Strategy, strategies.SingleDeviceStrategy):
        __doc__ = _Strategy.__doc__
        accelerator_type = JaxAccelerator
        mixed_precision = precision.MixedPrecision

    # So that Lightning reads `distributed_sampler_kwargs`.
    strategies.ParallelStrategy.register(JaxStrategy)
    if "jax" not in accelerators.AcceleratorRegistry:
        accelerators.AcceleratorRegistry.register("jax", JaxAccelerator)
        strategies.StrategyRegistry.register("jax", JaxStrategy)
        strategies.StrategyRegistry.register("jax_fsdp", JaxStrategy, plan={"*": along("data")})
    return JaxStrategy


def _in_several() -> bool:
    """Connect the processes that a launcher started; returns True if there are several."""
    if "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        join()
    return jax.process_count() > 1


def _readable(value: object) -> Any:
    """Returns a tensor spread over processes as one that this process can write to a file."""
    if not isinstance(value, torch.Tensor) or value.device.type != "jax":
        return value
    if is_here(read(value.detach())):
        return value
    return sharding.gather(value).cpu()


def _count(devices: Any) -> int:
    """Returns how many devices `Trainer(devices=...)` means: "auto" is one, -1 all.

    Raises:
        ValueError: there are not that many.
    """
    _in_several()
    known = len(jax.devices())
    count: Any = {"auto": 1, "-1": known, "[0]": 1}.get(str(devices), devices)
    if not str(count).isdecimal() or not 1 <= int(count) <= known:
        raise ValueError(
            f"devices={devices!r}: JAX has {known}. Pass how many to use, or -1 for all"
        )
    return int(count)


def _move(plugin: Any) -> None:
    """Make a plugin for mixed precision cast values, and scale losses, on the device.

    Lightning creates it for CUDA if it does not know the accelerator.
    """
    plugin.device = "jax"
    scaler = plugin.scaler
    if scaler is None or getattr(scaler, "_device", "jax") == "jax":
        return
    plugin.scaler = torch.amp.GradScaler("jax")  # one for "cuda" disables itself without CUDA
    if scaler.is_enabled():
        plugin.scaler.load_state_dict(scaler.state_dict())


for _package in _imported():
    JaxStrategy: Any = _register(_package)
