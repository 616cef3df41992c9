"""Watch the CPU tensors of a traced function, and remember the tensors it uses.

A CPU tensor made in the trace is a constant; one from outside that goes to the device is an input;
one from outside that Python code computes with becomes a guard on its value; one from outside
that is written to is an error, because the program could not repeat the write.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from calque.device.kernels import foreign
from calque.device.kernels.views import changes_geometry
from calque.device.memory.cell import Cell, set_geometry, view_of
from calque.errors import unrepeatable
from calque.program.lifting import Lifting
from calque.state import unwatched

_LARGEST_GUARD = 4096


class Witness(TorchDispatchMode):
    """Sees every operator of one trace.

    Args:
        on_tensor: called with each tensor that an operator takes over memory from outside.
        on_operator: called before each operator with it, its arguments and its keywords.
        outside: the tensors that each call has anew, by id: no other one may take their place.

    Attributes:
        handles: for each cell from outside, a tensor over it.
        looked_at: CPU tensors from outside that the function computed with on the CPU.
    """

    def __init__(
        self,
        lifting: Lifting,
        on_tensor: Callable[[torch.Tensor], None],
        on_operator: Callable[[Any, Any, Any], None],
        outside: dict[int, torch.Tensor],
    ) -> None:
        super().__init__()
        self.lifting = lifting
        self._on_tensor = on_tensor
        self._on_operator = on_operator
        self._outside = outside
        self.handles: dict[Cell, torch.Tensor] = {}
        self.looked_at: dict[int, torch.Tensor] = {}

    @classmethod
    def within(cls, around: "Witness | None", lifting: Lifting) -> "Witness":
        """A witness of a part of a trace, for which it sees what the one around would have seen."""
        if around is None:
            return cls(lifting, lambda tensor: None, lambda *call: None, {})
        return cls(lifting, lambda tensor: None, around._on_operator, around._outside)

    @unwatched
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._on_operator(func, args, kwargs)
        outside: list[torch.Tensor] = []
        on_device = False
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, torch.Tensor):
                on_device |= self._see(value, outside)
            elif isinstance(value, list | tuple):
                for item in value:
                    if isinstance(item, torch.Tensor):
                        on_device |= self._see(item, outside)
        if outside:
            self._check(func, args, kwargs, outside, on_device)
        if changes_geometry(func) and id(args[0]) in self._outside:
            return _regeometry(func, args, kwargs)
        if not on_device and _takes_traced_number(args, kwargs) and not _goes_to_device(kwargs):
            args, kwargs = _on_the_device(func, args, kwargs)
        result = foreign.run(func, args, kwargs)
        self._born(func, result, kwargs)
        return result

    def _see(self, tensor: torch.Tensor, outside: list[torch.Tensor]) -> bool:
        kind = tensor.device.type
        if kind == "jax":
            cell = getattr(tensor.untyped_storage(), "cell", None)
            if cell is not None and not self.lifting.is_fresh(cell):
                self._on_tensor(tensor)
                if cell not in self.handles:
                    self.handles[cell] = tensor if tensor.is_leaf else tensor.detach()
            return True
        if kind == "cpu" and id(tensor) not in self.lifting.host_born:
            outside.append(tensor)
        return False

    def _check(
        self, func: Any, args: Any, kwargs: Any, outside: list[torch.Tensor], on_device: bool
    ) -> None:
        changed = written(func, args, kwargs)
        for tensor in outside:
            if any(tensor is w for w in changed):
                raise unrepeatable(
                    f"{func} writes to a CPU tensor {_spoken(tensor)} from outside",
                    "of calque.jit, which the compiled program could not repeat",
                    "Move the tensor to device 'jax', or return the value and write it outside.",
                )
        if on_device or _goes_to_device(kwargs):
            return
        for tensor in outside:
            self._look_at(tensor, f"{func} computes on the CPU with a tensor")

    def read(self, tensor: torch.Tensor) -> None:
        """A CPU tensor is read as Python values, by no operator."""
        if id(tensor) not in self.lifting.host_born:
            self._look_at(tensor, "The function reads the values of a CPU tensor")

    def _look_at(self, tensor: torch.Tensor, what: str) -> None:
        if tensor.numel() > _LARGEST_GUARD:
            raise unrepeatable(
                f"{what} {_spoken(tensor)} from outside",
                "of calque.jit, whose values would be frozen in the program",
                "Move it to device 'jax' first.",
            )
        self.looked_at[id(tensor)] = tensor

    def _born(self, func: Any, result: Any, kwargs: Any) -> None:
        items = result if isinstance(result, list | tuple) else (result,)
        for item in items:
            if isinstance(item, torch.Tensor) and item.device.type == "cpu":
                if torch.Tag.nondeterministic_seeded in func.tags:
                    raise self.lifting.refused(
                        unrepeatable(
                            f"{func} draws random numbers {_spoken(item)} on the CPU inside "
                            "calque.jit",
                            "where they would be frozen in the program",
                            "Pass device='jax'.",
                        )
                    )
                self.lifting.host_born[id(item)] = item


def _regeometry(func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """Run an operator that must leave its tensor's geometry as it is."""
    tensor = args[0]
    before = view_of(tensor)
    func(*args, **kwargs)
    if view_of(tensor) != before:
        after = tuple(tensor.shape)
        set_geometry(tensor, before)
        raise unrepeatable(
            f"{func} gives a tensor {_spoken(tensor)} from outside another geometry, of shape "
            f"{after},",
            "which the compiled program could not repeat",
            "Use a view of it instead (`x.t()` for `x.t_()`), or change it before the call.",
        )
    return tensor


def _goes_to_device(kwargs: Any) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "jax"


def _takes_traced_number(args: Any, kwargs: Any) -> bool:
    values = (*args, *kwargs.values()) if kwargs else args
    return any(isinstance(value, torch.SymFloat) for value in values)


def _on_the_device(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of an operator that takes a number of the program, moved to the device.

    A kernel of the CPU would compute with the number, which has no value yet.

    Raises:
        TraceError: the operator writes to a CPU tensor, or makes one of no other tensor.
    """
    tensors = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if not tensors or func._schema.is_mutable:
        raise unrepeatable(
            f"{func} computes on the CPU with a number of a param group",
            "inside calque.jit, where the number is an input of the program and has no value",
            "Make the tensor on the device, with device='jax'.",
        )

    def move(x: Any) -> Any:
        return x.to("jax") if isinstance(x, Tensor) else x

    return torch.utils._pytree.tree_map(move, (args, kwargs))


def written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operator writes to."""
    if not func._schema.is_mutable:
        return []
    found = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found.extend(value if isinstance(value, list | tuple) else [value])
    return found


def _spoken(tensor: torch.Tensor) -> str:
    return f"of shape {tuple(tensor.shape)} and dtype {tensor.dtype}"
