"""Describes the results of a traced function, and other tensors that outlive the trace (see
`results`).
"""

import operator
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from jax import Array

from calque.device.backend.printing import refuse_kept
from calque.device.memory.cell import Cell, cell_of, fixed_view_of, moving, view_of
from calque.device.memory.geometry import View, contiguous_strides
from calque.device.memory.moving_views import is_moving
from calque.device.runtime.dtypes import to_torch
from calque.jitting.known_tensors import uses_old_memory
from calque.jitting.momentary_results import refuse_momentary
from calque.program.gradients.escaping_tensors import Attached, Carried, Carriers
from calque.program.gradients.graph_boundary import has_graph
from calque.program.host_results import HostResults, is_on_host, is_shared_on_host, memory_of
from calque.program.lifting import Lifting
from calque.program.result_views import creation_of, has_edge, is_plain_view, source_of
from calque.program.results import (
    Constant,
    Copied,
    Description,
    Existing,
    Flow,
    Fresh,
    Leaf,
    Made,
    OwnTensor,
    UnmovedArgument,
    ViewOf,
)
from calque.program.traced_arrays import is_traced_array, refuse_array
from calque.program.traced_numbers import TracedFloat
from calque.program.trees import is_tensor
from calque.state.weak import refuse_if_waited_for


class Describer:
    """Collects the arrays of the tensors that outlive a trace, one for each storage.

    Every tensor that outlives the trace must be described here. A tensor with an autograd graph is
    connected to PyTorch's graph in each call.

    Args:
        leaves: the tensors that represent the call's arguments.
        handles: for each cell from outside, a tensor over it.
        outside: the other tensors that existed before the trace, by id.
        pinned: the arguments that are part of the state.
        stored: the arguments that are passed with their whole storage.
        count: the number of arguments of the call; the others are implicit.
        unrepeatable: takes the reasons why no other call can make the same.
        hooked: whether tensors between views and their bases may have hooks.
        known: the objects that existed before the trace, by id.
        moved: the memory of tensors from outside that the function replaced by other.
        gradients: notes gradients from before the trace over this memory (see `ImplicitFinder`).

    Attributes:
        arrays: the arrays, in the order of the program's outputs.
        carriers: the tensors that have an autograd graph.
        attributed: the tensors that Python attributes were set on, with these attributes.
        number: returns the description of a traced number.
    """

    def __init__(
        self,
        lifting: Lifting,
        leaves: list[Any],
        handles: dict[Any, torch.Tensor],
        outside: Mapping[int, torch.Tensor],
        pinned: Collection[int],
        stored: Collection[int],
        count: int,
        unrepeatable: list[str],
        hooked: bool,
        known: Mapping[int, Any],
        moved: weakref.WeakSet[Cell],
        gradients: Callable[[Cell], list[tuple[torch.Tensor, int | None]]],
    ) -> None:
        self.lifting = lifting
        self.arrays: list[Array] = []
        self.carriers: Carriers = Carriers()
        self.attributed: list[tuple[Made, dict[str, Any]]] = []
        self._known: dict[int, tuple[Any, Description]] = {}
        self._outputs: dict[int, int] = {}
        self._plain: list[tuple[Fresh, torch.Tensor]] = []
        self._arguments = {id(t): i for i, t in enumerate(leaves) if isinstance(t, torch.Tensor)}
        self._cells = {
            cell_of(t): i
            for i, t in reversed(list(enumerate(leaves)))
            if i not in pinned and is_tensor(t)
        }
        self._host_leaves = [one for one in leaves if is_on_host(one)]
        self._host = HostResults(known)
        self._handles = handles
        self._outside = dict(outside)
        self._stored = stored
        self._count = count
        self._unrepeatable = unrepeatable
        self._hooked = hooked
        self._moved = moved
        self._gradients = gradients
        self.number: Callable[[Any], Any] = lambda value: None

    def describe(self, value: object) -> Any:
        """Returns the description of a tensor, or of a leaf of a result.

        A tensor that is described twice becomes one object in each call.
        """
        refuse_momentary(value)
        if not isinstance(value, torch.Tensor | np.ndarray | bytearray | memoryview):
            if type(value) is TracedFloat:
                return self.number(value)
            if isinstance(value, str):
                refuse_kept(value)
            return Constant(value)
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = value, self._described(value)
            if isinstance(known[1], Made) and isinstance(value, torch.Tensor):
                refuse_if_waited_for(value)
                self._describe_class(known[1], type(value))
                if not has_graph(value):
                    known[1].conjugate, known[1].negative = value.is_conj(), value.is_neg()
                if vars(value):
                    known[1].attributed = known[1].shared = True
                    self.attributed.append((known[1], dict(vars(value))))
        elif isinstance(known[1], Made):
            known[1].shared = True
        return known[1]

    def _describe_class(self, made: Made, kind: type[torch.Tensor]) -> None:
        is_plain = kind is torch.Tensor or issubclass(kind, torch.nn.Parameter)
        if not is_plain and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
            made.subclass, made.shared = kind, True

    def _described(self, value: Any) -> Description:
        if not is_tensor(value):
            return self._other(value)
        self._find_gradients(cell_of(value))
        index = self._arguments.get(id(value))
        if index is not None:
            return self._argument(index)
        if id(value) in self._outside:
            return Existing(value)
        if cell_of(value) in self._moved:
            raise uses_old_memory()
        if has_graph(value):
            value = value.resolve_conj().resolve_neg()
        if self.lifting.is_fresh(cell_of(value)):
            if has_graph(value):
                if (view := self._view_of_leaf(value)) is not None:
                    return view
                place = self.carriers.add(value, self._fresh(value))
                place.gradient = self._retained(value)
                return place
            made = self._fresh(value, self._leaf(value))
            self._plain.append((made, value))
            return made
        return self._over_outside(value)

    def _find_gradients(self, cell: Cell) -> None:
        """Let each call find the gradients from before the trace over this memory."""
        for gradient, index in self._gradients(cell):
            if index is None:
                self._outside[id(gradient)] = gradient
            else:
                self._arguments[id(gradient)] = index
                self._cells.setdefault(cell, index)

    def _other(self, value: Any) -> Description:
        """Describes a value that is not a tensor on the device."""
        if is_traced_array(value):
            refuse_array(value)
        if id(value) in self._arguments:
            return self._argument(self._arguments[id(value)])
        if is_on_host(value) and self.lifting.host_computations is not None:
            self.lifting.host_computations.keep(value)
        if isinstance(value, torch.Tensor) and not self._is_host_born(value):
            return self._host.made_otherwise(value) if self._is_new(value) else Existing(value)
        if isinstance(value, np.ndarray):
            return self._host.array(value, self._host_source)
        if isinstance(value, bytearray):
            return self._host.bytes(value)
        if isinstance(value, memoryview):
            made = self._host.buffer(value, self._host_source)
            if made is None:
                self._unrepeatable.append(
                    "a memoryview of parts of other memory is returned or stored, which no other "
                    "call can make"
                )
            return self._host.itself(value) if made is None else made
        if has_graph(value):
            self._unrepeatable.append(
                "a CPU tensor with an autograd graph is returned or stored, which no other call "
                'can make (unless the model is on the device: `model.to("jax")`)'
            )
            return self._host.itself(value)
        if not is_shared_on_host(value):
            return Copied(value)
        return self._host.tensor(value, self._host_source, self._leaf(value))

    def _is_new(self, value: torch.Tensor) -> bool:
        """Returns True for a plain CPU tensor that was not found before the trace."""
        if type(value) is not torch.Tensor or value.requires_grad or vars(value):
            return False
        return is_shared_on_host(value) and not self._host.knows(value, self._outside)

    def _is_host_born(self, value: torch.Tensor) -> bool:
        born = self.lifting.host_born
        return id(value) in born or memory_of(value) in self.lifting.host_memory

    def _host_source(self, value: torch.Tensor) -> tuple[Description, torch.Tensor] | None:
        """Returns the description of a CPU tensor from outside over the same memory, and it."""
        if memory_of(value) in self.lifting.host_memory:
            return None
        same = [one for one in self._host_leaves if memory_of(one) == memory_of(value)]
        if same:
            return self._argument(self._arguments[id(same[0])]), same[0]
        base = value._base
        if base is None:
            return Existing(value), value
        found = self.describe(base)
        if isinstance(found, Made):
            found.shared = True
        return found, base

    def _argument(self, index: int) -> OwnTensor:
        alone = index < self._count and index not in self._stored
        return OwnTensor(index) if alone else UnmovedArgument(index)

    def _fresh(self, value: torch.Tensor, leaf: Leaf | None = None) -> Fresh:
        cell = cell_of(value)
        output = self._outputs.get(id(cell))
        if output is None:
            output = self._outputs[id(cell)] = self.add(cell.array)
        shape = cell.array.shape
        whole = View(shape, cell.stride or contiguous_strides(shape), 0)
        same = fixed_view_of(value) == whole and value.dtype == to_torch(cell.array.dtype)
        made = Fresh(output, cell.stride, None if same else fixed_view_of(value), value.dtype, leaf)
        if value.is_inference() != torch.is_inference_mode_enabled():
            made.inference = value.is_inference()
        return made

    def _leaf(self, value: torch.Tensor) -> Leaf | None:
        is_parameter = isinstance(value, torch.nn.Parameter)
        requires_grad = value.requires_grad and has_edge(value)
        if not requires_grad and not is_parameter:
            return None
        gradient = None if value.grad is None else self.describe(value.grad)
        return Leaf(is_parameter, requires_grad, gradient)

    def _view_of_leaf(self, value: torch.Tensor) -> Description | None:
        """Describes a view of a leaf created in the trace; returns None for other tensors."""
        leaf = source_of(value)
        if leaf is None or not leaf.is_leaf:
            return None
        source = self.describe(leaf)
        if not isinstance(source, Fresh):
            return None
        source.shared = True
        return self._differentiable(value, source)

    def _differentiable(
        self, value: torch.Tensor, source: Existing | OwnTensor | Fresh
    ) -> ViewOf | Attached:
        """Describes a view that has an autograd graph, whose gradients may flow to its base."""
        view, creation, gradient = fixed_view_of(value), creation_of(value), self._retained(value)
        if self._is_plain(value):
            flow = Flow(value.retains_grad, gradient)
            return ViewOf(source, view, value.dtype, flow, creation=creation)
        target = ViewOf(source, view, value.dtype, creation=creation)
        return self.carriers.attach(value, target, gradient)

    def _is_plain(self, value: torch.Tensor) -> bool:
        return not self._hooked and is_plain_view(value)

    def _retained(self, value: torch.Tensor) -> Description | None:
        """Describes the retained gradient of a non-leaf tensor."""
        if not value.retains_grad or value.grad is None:
            return None
        return self.describe(value.grad)

    def _over_outside(self, value: torch.Tensor) -> Description:
        """Describes a tensor created in the trace that uses the storage of an older tensor."""
        base = value._base if value._is_view() else None
        whose = self._arguments.get(id(base))
        seen = whose is not None or id(base) in self._outside
        cell = cell_of(value)
        index = self._cells.get(cell) if whose is None else whose
        if index is not None:
            source = self._argument(index)
        elif base is not None and seen:
            source = Existing(base)
        else:
            source = Existing(self._handles.get(cell, value))  # a handler has created it
        if not has_graph(value):
            leaf, offset = self._leaf(value), self._moving_offset(value)
            view = fixed_view_of(value) if offset is None else view_of(value)
            of_source = seen and (whose is not None or index is None)
            creation = creation_of(value) if of_source and leaf is None else None
            return ViewOf(source, view, value.dtype, None, leaf, creation, offset)
        if seen:
            return self._differentiable(value, source)
        return self.carriers.attach(value, ViewOf(source, fixed_view_of(value), value.dtype))

    def _moving_offset(self, value: torch.Tensor) -> Description | None:
        """Describes the offset of a view that differs between calls; None for other views."""
        offset = value.storage_offset()
        if not is_moving(offset):
            return None
        nodes, strides, rest = moving().formula(offset)

        def position(*starts: int) -> int:
            return rest + sum(map(operator.mul, starts, strides))

        return self.number(TracedFloat(nodes[0].combined(position, tuple(nodes))))

    def leaf(self, tensor: torch.Tensor) -> Fresh | ViewOf | None:
        """Returns the description of a leaf created in the trace, if it outlives the trace."""
        known = self._known.get(id(tensor))
        if known is None or not isinstance(known[1], Fresh | ViewOf):
            return None
        known[1].shared = True
        return known[1]

    def rewritten(self, tensor: torch.Tensor, target: Existing | OwnTensor) -> Attached:
        """Returns the description of a tensor from outside whose autograd history has changed."""
        return self.carriers.attach(tensor, target)

    def settle(self) -> None:
        """Finish; nothing more may be described."""
        self.carriers.settle(self._fresh, self._is_plain)
        self._relate()
        self._host.settle()

    def _relate(self) -> None:
        """Relate views without an autograd graph to the tensors that share their storage.

        A base may outlive the trace too. Otherwise, if several tensors are views of the same base,
        each call creates it for them.
        """
        groups: dict[int, list[tuple[Fresh, torch.Tensor]]] = {}
        for made, value in self._plain:
            made.creation, base = creation_of(value), value._base
            if made.creation is not None and base is not None:
                made.view = fixed_view_of(value)
                groups.setdefault(id(base), []).append((made, base))
        for key, group in groups.items():
            base = self._known[key][1] if key in self._known else None
            if base is None and len(group) > 1:
                base = self._fresh(group[0][1])
            if isinstance(base, Made):
                base.shared = True
                for made, _ in group:
                    made.base = base

    def forget(self) -> dict[int, Description]:
        """Release the tensors.

        Returns:
            The cells created in the trace, by the index of their output.
        """
        made: dict[int, Description] = {}
        for _, one in self._known.values():
            if isinstance(one, Fresh):
                made.setdefault(one.output, one)
        for slot, carrier in enumerate(self.carriers.found):
            if isinstance(carrier.bare, Fresh):
                made[carrier.bare.output] = Carried(slot)
        self.carriers.found.clear()
        self._plain.clear()
        self._known.clear()
        return made

    def add(self, array: Array) -> int:
        """Make an array an output of the program; returns its index."""
        self.arrays.append(array)
        return len(self.arrays) - 1
