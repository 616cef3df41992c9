"""Observes the CPU tensors of a traced function, and records the tensors it uses.

A CPU tensor created in the trace is a constant. For one from outside, a copy to the device is an
input, a computation with it on the CPU becomes a guard on its value, and a write is an error,
because the program could not repeat it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from calque.device.kernels import foreign, remedies
from calque.device.kernels.python_numbers import refuse_stand_ins
from calque.device.kernels.views import changes_geometry
from calque.device.memory.cell import Cell, refuse_nested
from calque.errors import TraceError, unrepeatable
from calque.errors.frames import user_origin
from calque.jitting.array_computations import ArrayComputations
from calque.jitting.host_computations import Pending
from calque.jitting.host_formulas import LARGEST_GUARD
from calque.jitting.host_values import checksum_of, has_same_bits, without_modes
from calque.jitting.kept_geometry import described, regeometry, same_geometry
from calque.program.gradients.graph_boundary import is_leaf
from calque.program.host_results import memory_of
from calque.program.lifting import Lifting
from calque.state import unwatched
from calque.upstream import torch_c
from calque.upstream.dispatch_mode import DispatchMode
from calque.upstream.torch_internals import tree_leaves, tree_map

_DEVICE = torch.device("jax", 0)
_LIFT = torch.ops.aten.lift_fresh.default
"""The function that `torch.tensor` calls with the tensor that it has created."""
_SETS = (torch.ops.aten.set_.source_Storage, torch.ops.aten.set_.source_Storage_storage_offset)


class _Kind(NamedTuple):
    """What is known of an operator.

    Attributes:
        op: the operator.
        is_mutable: whether it writes to an argument.
        changes_geometry: see `views.changes_geometry`.
        sets: whether it gives a tensor other memory.
        has_rule: whether calque has a kernel for it, and not only PyTorch's C++.
    """

    op: Any
    is_mutable: bool
    changes_geometry: bool
    sets: bool
    has_rule: bool


_kinds: dict[int, _Kind] = {}
"""By id, because hashing an operator calls Python."""


def _kind_of(op: Any) -> _Kind:
    has_rule = torch_c.dispatch_has_kernel_for_dispatch_key(op.name(), "PrivateUse1")
    known = changes_geometry(op), op in _SETS, has_rule
    found = _kinds[id(op)] = _Kind(op, op._schema.is_mutable, *known)
    return found


class HostTensorMode(DispatchMode):
    """Observes every operator of one trace.

    Args:
        on_tensor: called with each operand whose memory is from outside.
        on_operator: called before each operator, with the operator, its arguments and its keywords.
        outside: the tensors that differ in each call, by id, which must not be used as handles.
        leaves: the arguments, some of which may be CPU tensors.
        own: the tensors of the state, by id.

    Attributes:
        handles: for each cell from outside, a tensor over it.
        looked_at: the CPU tensors from outside that the function used on the CPU, by id, each with
            its values at that time.
        taken: the CPU tensors from outside whose values are inputs, each with a checksum of the
            values when they were taken, and the place in the user's code.
    """

    def __init__(
        self,
        lifting: Lifting,
        on_tensor: Callable[[torch.Tensor], None],
        on_operator: Callable[[Any, Any, Any], None],
        outside: dict[int, torch.Tensor],
        leaves: Sequence[Any] = (),
        own: Mapping[int, torch.Tensor] = {},
    ) -> None:
        super().__init__()
        self.lifting = lifting
        self._on_tensor = on_tensor
        self._on_operator = on_operator
        self._outside = outside
        self.handles: dict[Cell, torch.Tensor] = {}
        self.looked_at: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.taken: dict[tuple[int, int], tuple[torch.Tensor, Any]] = {}
        self._origins: dict[int, Any] = {}
        born = lifting.host_born, lifting.host_memory
        self.computations: ArrayComputations = ArrayComputations(leaves, own, *born)
        self._around: HostTensorMode | None = None
        lifting.host_computations = self.computations
        lifting.on_host_input = partial(_take, self.taken)  # which does not refer to this object

    @classmethod
    def within(cls, around: "HostTensorMode | None", lifting: Lifting) -> "HostTensorMode":
        """Returns an observer for a part of a trace, which reports to this one."""
        if around is None:
            return cls(lifting, lambda tensor: None, lambda *call: None, {})
        made = cls(lifting, lambda tensor: None, around._on_operator, around._outside)
        made._around = around
        return made

    @unwatched
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind = _kinds.get(id(func)) or _kind_of(func)
        self._on_operator(func, args, kwargs)
        if func is _LIFT and args[0].device.type == "cpu":
            self.lifting.host_memory[memory_of(args[0])] = args[0]
            if not args[0].untyped_storage().resizable():  # it is over an array
                self.computations.expose(args[0])
        outside: list[torch.Tensor] = []
        on_device = takes_number = False
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, torch.Tensor):
                on_device |= self._see(value, outside)
            elif isinstance(value, list | tuple):
                for item in value:
                    if isinstance(item, torch.Tensor):
                        on_device |= self._see(item, outside)
            elif isinstance(value, torch.SymFloat):
                takes_number = True
        if not kind.has_rule or not (on_device or _goes_to_device(kwargs)):
            refuse_stand_ins((*args, *kwargs.values()))
        pending = None
        if outside or kind.is_mutable or (takes_number and not on_device):
            pending = self._check(func, args, kwargs, outside, on_device)
        if kind.changes_geometry and id(args[0]) in self._outside:
            return regeometry(func, args, kwargs)
        if pending is not None:
            args, kwargs = pending.args, pending.kwargs
        elif takes_number and not on_device and not _goes_to_device(kwargs):
            args, kwargs = _on_the_device(func, args, kwargs)
        try:
            result = self._run(func, args, kwargs, kind)
        except Exception:
            self._give_up(pending, func, outside)  # as code may go on after the error
            raise
        if kind.sets and args[0].device.type == "cpu":
            if memory_of(args[0]) not in self.lifting.host_memory:
                self._look_at(args[0], "The function accesses the memory of a CPU tensor")
        if pending is not None and self.computations.add(pending, result):
            return result
        self._give_up(pending, func, outside)
        self._born(func, result, (args, kwargs))
        return result

    def _run(self, func: Any, args: Any, kwargs: Any, kind: _Kind) -> Any:
        result = self.lifting.moving.run(func, args) if self.lifting.moving else NotImplemented
        if result is not NotImplemented:
            return result
        if kwargs and kind.is_mutable:
            with self._keeping_geometry(func, args, kwargs):
                return foreign.run(func, args, kwargs)
        return foreign.run(func, args, kwargs)

    def _give_up(self, pending: Pending | None, func: Any, outside: list[torch.Tensor]) -> None:
        """Compare the values with which an operator on the CPU computes, if calls cannot repeat
        it.
        """
        if pending is not None:
            self.computations.compare(pending)
            self._look_at_all(func, outside)

    def _keeping_geometry(self, func: Any, args: Any, kwargs: Any) -> AbstractContextManager[None]:
        """A context manager that refuses an operator that resizes an `out=` from outside."""
        known = [one for one in written(func, args, kwargs) if id(one) in self._outside]
        return same_geometry(func, known) if known else nullcontext()

    def see(self, tensor: torch.Tensor) -> None:
        """Record that a tensor on the device is read or written without an operator."""
        self._see(tensor, [])

    def _see(self, tensor: torch.Tensor, outside: list[torch.Tensor]) -> bool:
        if tensor.is_cpu:  # faster than `device.type`
            if id(tensor) not in self.lifting.host_born:
                # For example a parameter that shares it.
                if memory_of(tensor) in self.lifting.host_memory or self._fixed_around(tensor):
                    self.lifting.host_born[id(tensor)] = tensor
                else:
                    outside.append(tensor)
                    self.computations.see(tensor)
            return False
        if tensor.device != _DEVICE and tensor.device.type != "jax":
            return False
        cell = getattr(tensor.untyped_storage(), "cell", None)
        if cell is not None and not self.lifting.is_fresh(cell):
            self._on_tensor(tensor)
            if cell not in self.handles:
                self.handles[cell] = tensor if is_leaf(tensor) else tensor.detach()
        return True

    def _fixed_around(self, tensor: torch.Tensor) -> bool:
        """Compare the arguments from which the trace around this one has computed a tensor; returns
        False if it has not.
        """
        if self._around is None or not self._around.computations.has(tensor):
            return False
        self._around.fix(tensor)
        self.lifting.host_memory[memory_of(tensor)] = tensor
        return True

    def fix(self, tensor: torch.Tensor) -> None:
        """Compare the arguments from which a tensor is computed, so that it is a constant."""
        if self.computations.has(tensor):
            self.lifting.host_born[id(tensor)] = tensor
        self.computations.fix(tensor)
        self.compare()

    def compare(self) -> None:
        """Record the values of the tensors that must be compared."""
        for one in self.computations.compared.values():
            self._look_at_one(one, "The function computes on the CPU with a tensor")
        self.computations.compared.clear()

    def _check(
        self, func: Any, args: Any, kwargs: Any, outside: list[torch.Tensor], on_device: bool
    ) -> Pending | None:
        """Refuse what no program can repeat; returns an operator on the CPU that each call can."""
        on_device = on_device or _goes_to_device(kwargs)
        pending = None if on_device else self.computations.plan(func, args, kwargs)
        for tensor in outside if pending is not None else ():
            if id(tensor) in self._outside:
                _take(self.taken, tensor)
        changed = [] if pending is not None else written(func, args, kwargs)
        for tensor in outside if pending is None else ():
            known = on_device and self.computations.of(tensor) is not None
            if self.computations.has(tensor) and (not known or any(x is tensor for x in changed)):
                self.fix(tensor)
        for tensor in changed:
            if tensor.device.type == "cpu" and memory_of(tensor) not in self.lifting.host_memory:
                raise unrepeatable(
                    f"{func} writes to a CPU tensor {described(tensor)} from outside",
                    "of calque.jit, which the compiled program could not repeat",
                    "Move the tensor to device 'jax', or return the value and write it outside.",
                )
        if pending is None and not on_device:
            self._look_at_all(func, outside)
        return pending

    def _look_at_all(self, func: Any, outside: Iterable[torch.Tensor]) -> None:
        for tensor in outside:
            if id(tensor) not in self.lifting.host_born:
                self._look_at(tensor, f"{func} computes on the CPU with a tensor")

    def read(self, tensor: torch.Tensor) -> None:
        """Record that a CPU tensor is read as Python values, without an operator."""
        if id(tensor) not in self.lifting.host_born:
            self._look_at(tensor, "The function reads the values of a CPU tensor")
        self.computations.expose(tensor)

    def _look_at(self, tensor: torch.Tensor, what: str) -> None:
        if id(tensor) in self._outside:
            self._look_at_one(tensor, what)
            return
        if self.computations.is_computed(tensor):
            is_made = self.computations.has(tensor)
            self.fix(tensor)
            if is_made:
                return
        memory = memory_of(tensor)  # may be shared with an argument
        hosts = (t for t in self._outside.values() if t.device.type == "cpu")
        for one in [t for t in hosts if memory_of(t) == memory] or [tensor]:
            self._look_at_one(one, what)

    def _look_at_one(self, tensor: torch.Tensor, what: str) -> None:
        refuse_nested(tensor)
        if tensor.numel() > LARGEST_GUARD:
            raise unrepeatable(
                f"{what} {described(tensor)} from outside",
                "of calque.jit, whose values would be frozen in the program",
                "Move it to device 'jax' first.",
            )
        if id(tensor) not in self.looked_at:
            with without_modes():
                self.looked_at[id(tensor)] = tensor, tensor.detach().clone()
            self._origins[id(tensor)] = user_origin()

    def settle(self) -> None:
        """Compare the arguments of what was computed and not used."""
        self.computations.settle()
        self.compare()

    def values(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns the CPU tensors that were read, each with its values at that time.

        Raises:
            TraceError: one was written to without an operator.
        """
        for key, (tensor, value) in self.looked_at.items():
            if not has_same_bits(tensor, value):
                raise _written_without_operator(tensor, self._origins[key])
        for (_, before), (tensor, origin) in self.taken.items():
            if checksum_of(tensor) != before:
                raise _written_without_operator(tensor, origin)
        return list(self.looked_at.values())

    def _born(self, func: Any, result: Any, given: Any) -> None:
        items = result if isinstance(result, list | tuple) else (result,)
        made = [x for x in items if isinstance(x, torch.Tensor) and x.is_cpu]
        if not made:
            return
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise self.lifting.refused(
                unrepeatable(
                    f"{func} draws random numbers {described(made[0])} on the CPU inside "
                    "calque.jit",
                    "where they would be frozen in the program",
                    remedies.of_random(),
                )
            )
        self.lifting.host_born.update((id(tensor), tensor) for tensor in made)
        tensors = (x for x in tree_leaves(given) if isinstance(x, torch.Tensor))
        taken = {memory_of(x) for x in tensors if x.device.type == "cpu"}
        for tensor in made:
            if (memory := memory_of(tensor)) not in taken:
                self.lifting.host_memory[memory] = tensor


def _take(taken: dict[tuple[int, int], tuple[torch.Tensor, Any]], tensor: torch.Tensor) -> None:
    """Record that the values of a CPU tensor become an input, which each call reads first."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return
    key = id(tensor), checksum_of(tensor)
    if key not in taken:
        taken[key] = tensor, user_origin()


def _written_without_operator(tensor: torch.Tensor, origin: Any) -> TraceError:
    place = f"{origin}: " if origin else ""
    return TraceError(
        f"{place}a CPU tensor {described(tensor)} from outside calque.jit is read here "
        "and written to without an operator (through NumPy, for instance), which "
        "the compiled program could not repeat.\n"
        "Move the tensor to device 'jax', or return the value and write it outside."
    )


def _goes_to_device(kwargs: Any) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "jax"


def _on_the_device(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Moves the arguments of an operator that takes a number of the program to the device.

    A CPU kernel would compute with the number, which has no value yet.

    Raises:
        TraceError: the operator writes to a CPU tensor, or creates one from no other tensor.
    """
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if not tensors or func._schema.is_mutable:
        for number in (x.node for x in (*args, *kwargs.values()) if isinstance(x, torch.SymFloat)):
            if number.places:
                number.watch.give_up(number)
        raise unrepeatable(
            f"{func} computes on the CPU with a number from a param group",
            "inside calque.jit, where the number is an input of the program and has no value",
            "Create the tensor with device='jax'.",
        )

    def move(x: object) -> Any:
        return x.to("jax") if isinstance(x, Tensor) else x

    return tree_map(move, (args, kwargs))


def written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Returns the arguments that an operator writes to."""
    if not func._schema.is_mutable:
        return []
    found = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found.extend(value if isinstance(value, list | tuple) else [value])
    return found
