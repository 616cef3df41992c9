"""The process group of `init_process_group("calque")`: a rank is a process.

CPU tensors use gloo; tensors on the device use a JAX program over one device of each process. Do
not use either inside `calque.jit`, where tensors are already global.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.distributed as dist
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from calque.device.memory.cell import active, read, x64
from calque.device.memory.wrapping import wrap
from calque.device.runtime.addressable import is_here
from calque.errors import TraceError
from calque.upstream import torch_distributed

Reduction = dist.ReduceOp.RedOpType
_REDUCTIONS: dict[Any, Callable[..., Any]] = {
    Reduction.SUM: lambda x: x.sum(0, dtype=x.dtype),
    Reduction.AVG: lambda x: (x.sum(0, dtype=x.dtype) / x.shape[0]).astype(x.dtype),
    Reduction.PRODUCT: lambda x: x.prod(0, dtype=x.dtype),
    Reduction.MIN: lambda x: x.min(0),
    Reduction.MAX: lambda x: x.max(0),
}

# Gloo records CPU collectives itself. For the rest PyTorch would read the group's name.
torch_distributed.unrecorded.add("calque")


class ProcessGroupCalque(dist.ProcessGroup):
    """Collectives between processes.

    Args:
        store: where gloo finds the other processes.
        rank: the rank of this process.
        size: the number of processes.
        options: PyTorch's options, with the global ranks of the group.
    """

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._host = dist.ProcessGroupGloo(store, rank, size, options.timeout)
        self._ranks = tuple(options.global_ranks_in_group) or tuple(range(size))

    def getBackendName(self) -> str:
        return "calque"

    def getGroupName(self) -> str:
        """Not supported: collectives that find a group by its name would copy tensors to the CPU.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "the backend 'calque' has no functional collectives "
            "(torch.distributed._functional_collectives): use those of torch.distributed itself "
            "(all_reduce, all_gather, ...). The sum() or mean() of a tensor that is spread over "
            "the processes already covers all of them"
        )

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("jax")]

    def _get_backend(self, device: torch.device) -> Any:
        return self._host if device.type == "cpu" else self

    def _everyone(self, tensor: torch.Tensor) -> Any:
        """Returns the values of all processes, along a new first axis, on this device."""
        if active.trace is not None:
            raise TraceError(
                "a torch.distributed collective is called in a traced function, where tensors "
                "are global: sum() and mean() already cover all devices, and XLA inserts the "
                "communication. Leave the collective out, or call it eagerly"
            )
        array = read(tensor.detach())
        if not is_here(array):
            raise RuntimeError(
                "a torch.distributed collective is called on a tensor of shape "
                f"{tuple(tensor.shape)} that is spread over the processes: it is global already, "
                "so its sum() or mean() covers all of them"
            )
        if self.size() == 1:
            return array[None]
        return _gathered(np.asarray(array), self._ranks)

    def allreduce(self, tensors: list[torch.Tensor], opts: object = None) -> Any:
        if tensors[0].device.type != "jax":
            return self._host.allreduce(tensors, opts or dist.AllreduceOptions())
        self._reduce(tensors, opts)
        return _Done(tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: object = None) -> Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        if tensors[0].device.type != "jax":
            return self._host.reduce(tensors, opts)
        self._reduce(tensors, opts, only=opts.rootRank)
        return _Done(tensors)

    def _reduce(self, tensors: list[torch.Tensor], opts: object, only: int | None = None) -> None:
        reduce = _reduction(getattr(opts, "reduceOp", Reduction.SUM))
        for tensor in tensors:
            everyone = self._everyone(tensor)
            if only is None or only == self.rank():
                _write(tensor, reduce(everyone))

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        if tensors[0].device.type != "jax":
            return self._host.broadcast(tensors, opts)
        for tensor in tensors:
            _write(tensor, self._everyone(tensor)[opts.rootRank])
        return _Done(tensors)

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: object = None
    ) -> Any:
        if inputs[0].device.type != "jax":
            return self._host.allgather(outputs, inputs, opts or dist.AllgatherOptions())
        for parts, given in zip(outputs, inputs, strict=True):
            for part, value in zip(parts, self._everyone(given), strict=True):
                _write(part, value)
        return _Done(outputs)

    def _allgather_base(
        self, output: torch.Tensor, given: torch.Tensor, opts: object = None
    ) -> Any:
        if given.device.type != "jax":
            return self._host._allgather_base(output, given, opts or dist.AllgatherOptions())
        _write(output, self._everyone(given).reshape(tuple(output.shape)))
        return _Done([output])

    def reduce_scatter(
        self, outputs: list[Any], inputs: list[list[Any]], opts: object = None
    ) -> Any:
        if outputs[0].device.type != "jax":
            return self._host.reduce_scatter(outputs, inputs, opts or dist.ReduceScatterOptions())
        reduce = _reduction(getattr(opts, "reduceOp", Reduction.SUM))
        for output, given in zip(outputs, inputs, strict=True):
            _write(output, reduce(self._everyone(torch.stack(given)))[self.rank()])
        return _Done(outputs)

    def _reduce_scatter_base(self, output: Any, given: Any, opts: object = None) -> Any:
        if given.device.type != "jax":
            options = opts or dist.ReduceScatterOptions()
            return self._host._reduce_scatter_base(output, given, options)
        parts = list(given.reshape(self.size(), *output.shape))
        return self.reduce_scatter([output], [parts], opts)

    def scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any) -> Any:
        if outputs[0].device.type != "jax":
            return self._host.scatter(outputs, inputs, opts)
        for place, output in enumerate(outputs):
            own = inputs[place] if inputs else [torch.zeros_like(output)] * self.size()
            _write(output, self._everyone(torch.stack(own))[opts.rootRank, self.rank()])
        return _Done(outputs)

    def gather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any) -> Any:
        if inputs[0].device.type != "jax":
            return self._host.gather(outputs, inputs, opts)
        for place, given in enumerate(inputs):
            everyone = self._everyone(given)
            if self.rank() == opts.rootRank:
                for part, value in zip(outputs[place], everyone, strict=True):
                    _write(part, value)
        return _Done(outputs)

    def alltoall_base(
        self, output: Any, given: Any, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> Any:
        if given.device.type != "jax":
            options = opts or dist.AllToAllOptions()
            return self._host.alltoall_base(output, given, output_sizes, input_sizes, options)
        if output_sizes or input_sizes:
            raise NotImplementedError(
                "all_to_all of device tensors in parts of different sizes is not supported"
            )
        parts = given.reshape(self.size(), -1, *given.shape[1:])
        _write(output, self._everyone(parts)[:, self.rank()].reshape(tuple(output.shape)))
        return _Done([output])

    def alltoall(self, outputs: list[Any], inputs: list[Any], opts: object = None) -> Any:
        if inputs[0].device.type != "jax":
            return self._host.alltoall(outputs, inputs, opts or dist.AllToAllOptions())
        if len({tuple(one.shape) for one in (*outputs, *inputs)}) > 1:
            raise NotImplementedError(
                "all_to_all of device tensors of different shapes is not supported"
            )
        received = self._everyone(torch.stack(inputs))[:, self.rank()]
        for output, value in zip(outputs, received, strict=True):
            _write(output, value)
        return _Done(outputs)

    # The names in newer releases of PyTorch.
    all_gather_single = _allgather_base  # type: ignore[assignment]
    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]
    all_to_all_single = alltoall_base  # type: ignore[assignment]

    def barrier(self, opts: object = None) -> Any:
        return self._host.barrier(opts or dist.BarrierOptions())

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Any:
        _check_host(tensors, "send")
        return self._host.send(tensors, rank, tag)

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Any:
        _check_host(tensors, "recv")
        return self._host.recv(tensors, rank, tag)


class _Done(torch_distributed.Work):
    """The handle of a collective that has ended."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: object = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        return self._future


def _check_host(tensors: list[torch.Tensor], name: str) -> None:
    if tensors[0].device.type == "jax":
        raise NotImplementedError(
            f"torch.distributed.{name} does not support device tensors, because all processes "
            "run one JAX program: use tensor.cpu()"
        )


def _reduction(op: object) -> Callable[..., Any]:
    found = _REDUCTIONS.get(getattr(op, "op", op))
    if found is None:
        name = getattr(getattr(op, "op", op), "name", op)
        raise NotImplementedError(
            f"{name} is not supported for device tensors: use SUM, AVG, PRODUCT, MIN or MAX"
        )
    return found


def _write(tensor: torch.Tensor, value: object) -> None:
    with torch.no_grad(), x64():
        tensor.copy_(wrap(jnp.asarray(value)))


@lru_cache(maxsize=32)
def _mesh(ranks: tuple[int, ...]) -> Mesh:
    """A mesh with one device of each process in a group."""
    first = {device.process_index: device for device in reversed(jax.devices())}
    devices = np.array([first[rank] for rank in ranks])
    return Mesh(devices, ("processes",), axis_types=(AxisType.Auto,))


def _gathered(own: np.ndarray, ranks: tuple[int, ...]) -> Any:
    mesh = _mesh(ranks)
    split = NamedSharding(mesh, PartitionSpec("processes"))
    with x64():
        device = next(d for d in mesh.devices.flat if d.process_index == jax.process_index())
        part = jax.device_put(own[None], device)
        shape = (len(ranks), *own.shape)
        whole = jax.make_array_from_single_device_arrays(shape, split, [part])
        return jnp.asarray(np.asarray(_everywhere(mesh)(whole).addressable_data(0)))


@lru_cache(maxsize=32)
def _everywhere(mesh: Mesh) -> Any:
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))
