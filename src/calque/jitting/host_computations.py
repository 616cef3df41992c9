"""Which CPU tensors of a trace each call computes (see `host_formulas`)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from calque.jitting.guards import CallGuard
from calque.jitting.host_formulas import (
    LARGEST_GUARD,
    Argument,
    Computed,
    Formula,
    Guarded,
    HostFormulaGuard,
    HostFormulaSource,
    Own,
    Part,
    Place,
    Traced,
    place_of,
)
from calque.jitting.host_values import without_modes
from calque.jitting.kept_geometry import KeptTensors, kept_of
from calque.program.host_results import memory_of
from calque.program.traced_numbers import TracedFloat
from calque.upstream import torch_c
from calque.upstream.torch_internals import OpOverload, pytree

_MOST = 100
"""The number of operators on the CPU above which the values that they take are compared instead."""
_NAMESPACES = ("aten", "prims")
_PLAIN = (int, float, complex, bool, str, type(None), torch.dtype, torch.device)
_PLAIN += (torch.layout, torch.memory_format)


class Pending(NamedTuple):
    """An operator that is about to run, and that each call can repeat.

    Attributes:
        func: the operator.
        operands: its flattened arguments, with formulas.
        spec: puts them together.
        args, kwargs: its arguments, with the present values of traced numbers.
        written: where the tensor lies to which it writes.
    """

    func: Any
    operands: list[Any]
    spec: Any
    args: Any
    kwargs: Any
    written: Place | None = None


class _Made(NamedTuple):
    tensor: Tensor
    formula: Formula
    together: int
    storage: torch.UntypedStorage  # so that its identifier stays unique


class HostComputations:
    """The CPU tensors of one trace that each call computes.

    Args:
        leaves: the arguments.
        own: tensors of the state, and arguments, by id.
        born: the CPU tensors that the trace has created with the same values in each call, by id.
        memory: the same, by their memory.

    Attributes:
        compared: the tensors from outside whose values must be compared, by id.
        arguments: the indexes of the arguments with which calls compute.
    """

    def __init__(
        self,
        leaves: Sequence[Any],
        own: Mapping[int, Tensor],
        born: dict[int, Tensor],
        memory: dict[int, Tensor],
    ) -> None:
        self._leaves, self._own, self._born, self._memory = leaves, own, born, memory
        given = [(i, one) for i, one in enumerate(leaves) if _is_plain(one)]
        self._indexes = {id(one): i for i, one in reversed(given)}
        self._outside = {memory_of(one) for _, one in given}
        self.compared: dict[int, Tensor] = {}
        self._given = frozenset(map(id, leaves))
        self._read: dict[int, tuple[Tensor, Any]] = {}
        self.arguments: set[int] = set()
        self._made: dict[int, list[_Made]] = {}
        self._roots: dict[int, dict[int, Any]] = {}
        self._used: set[int] = set()
        self._empty: set[int] = set()
        self._shared: set[int] = set()
        self._exposed: dict[int, torch.UntypedStorage] = {}
        self._refuse: Callable[[], Any] = lambda: None
        self._kept: list[Any] = []  # so that ids stay unique
        self._count = self._numbers = 0
        self._guarded: dict[int, Guarded] = {}
        self._sources: dict[int, HostFormulaSource] = {}

    def see(self, tensor: Tensor) -> None:
        """Record that an operator takes a tensor from outside."""
        key = id(tensor)
        if key not in self._read and key not in self._given and key in self._own:
            self._read[key] = tensor, kept_of(tensor)

    def expose(self, tensor: Tensor) -> None:
        """Record that an array of NumPy is over a tensor's memory, which each call would not have
        if it computed the tensor.
        """
        self._keep_shared(tensor)
        self._exposed[memory_of(tensor)] = tensor.untyped_storage()

    def _keep_shared(self, tensor: Tensor) -> None:
        """Have arrays compared if a tensor that stays may be over the memory of one."""
        if memory_of(tensor) in self._shared:
            self._refuse()

    def has(self, tensor: Tensor) -> bool:
        """Returns True if each call creates a tensor, or one over its memory, by computing."""
        memory = memory_of(tensor)
        return memory in self._made and memory not in self._outside

    def of(self, tensor: Tensor) -> Formula | None:
        """Returns the formula of a tensor; None if it has none."""
        if not _is_plain(tensor) or (id(tensor) in self._born and not self.has(tensor)):
            return None
        index = self._indexes.get(id(tensor))
        if index is not None:
            return self._root(Argument(index), tensor)
        made = self._made.get(memory_of(tensor), [])
        for one in reversed(made):
            if one.tensor.dtype == tensor.dtype and tensor.is_set_to(one.tensor):
                self._used.add(one.together)
                return one.formula
        if self.has(tensor):
            self._used.add(made[-1].together)
            return self._kept_alive(Part(made[-1].formula, place_of(tensor)), made[-1].formula)
        if id(tensor) in self._own and memory_of(tensor) not in self._memory:
            self._outside.add(memory_of(tensor))
            return self._root(Own(tensor), tensor)
        return None

    def _root(self, formula: Formula, tensor: Any) -> Formula:
        self._kept.append(formula)
        self._roots[id(formula)] = {id(tensor): tensor}
        return formula

    def _kept_alive(self, formula: Formula, *operands: Formula) -> Formula:
        self._kept.append(formula)
        found = self._roots[id(formula)] = {}
        for one in operands:
            found.update(self._roots.get(id(one), {}))
        return formula

    def source(self, tensor: Tensor) -> HostFormulaSource | None:
        """Returns the source of a tensor that goes to the device; None if it is not computed."""
        if memory_of(tensor) not in self._made or id(tensor) in self._indexes:
            return None
        formula = self.of(tensor)
        if not isinstance(formula, Computed | Part):
            return None
        if id(formula) not in self._sources:
            self._sources[id(formula)] = HostFormulaSource(formula)
            self._guard(formula, tensor)
        return self._sources[id(formula)]

    def _guard(self, formula: Formula, tensor: Tensor, value: Tensor | None = None) -> None:
        known = self._guarded.get(id(formula))
        value = known.value if value is None and known is not None else value
        self._guarded[id(formula)] = Guarded(formula, place_of(tensor), value)
        roots = self._roots.get(id(formula), {})
        self.arguments.update(self._indexes[key] for key in roots if key in self._indexes)

    # Operators ------------------------------------------------------------------------------------

    def plan(self, func: Any, args: Any, kwargs: Any) -> Pending | None:
        """Returns an operator on the CPU that each call can repeat; None if it cannot."""
        if not isinstance(func, OpOverload) or func.namespace not in _NAMESPACES:
            return None
        if self._count >= _MOST or torch.Tag.nondeterministic_seeded in func.tags:
            return None
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [one for one in leaves if isinstance(one, Tensor)]
        if not tensors or not all(map(_is_plain, tensors)):
            return None
        if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
            return None
        if not all(_is_operand(one) for one in leaves):
            return None
        if self._shared and func._schema.is_mutable:
            written = [x for x in (leaves[0], *kwargs.values()) if isinstance(x, Tensor)]
            if not self._shared.isdisjoint(map(memory_of, written)):
                self._refuse()
        written = None
        if func._schema.is_mutable:
            if not self._writes_to(func, leaves[0]):
                return None
            written = place_of(leaves[0])
        operands = [self._operand(one) for one in leaves]
        if None in (one for x, one in zip(leaves, operands) if isinstance(x, Tensor)):
            return None
        if not any(isinstance(one, Formula) and self._varies(one) for one in operands):
            return None
        plain = [one.node.compute() if type(one) is TracedFloat else one for one in leaves]
        args, kwargs = pytree.tree_unflatten(plain, spec)
        return Pending(func, operands, spec, args, kwargs, written)

    def _varies(self, formula: Formula) -> bool:
        return isinstance(formula, Traced) or bool(self._roots.get(id(formula)))

    def _writes_to(self, func: OpOverload, tensor: Any) -> bool:
        """Returns True if an operator only writes to a tensor that the function has created."""
        writes = [x.alias_info is not None and x.is_write for x in func._schema.arguments]
        if writes.index(True) > 0 or sum(writes) > 1 or torch.Tag.inplace_view in func.tags:
            return False
        if not isinstance(tensor, Tensor) or memory_of(tensor) in self._exposed:
            return False
        return self.has(tensor) or self._is_born(tensor)

    def _is_born(self, tensor: Tensor) -> bool:
        return id(tensor) in self._born or memory_of(tensor) in self._memory

    def _operand(self, value: Any) -> Any:
        if type(value) is TracedFloat:
            return self._traced(value.node.compute, (value.node,))
        if not isinstance(value, Tensor):
            return value
        formula = self.of(value)
        if formula is not None or not self._is_born(value):
            return formula
        with without_modes():
            copy = place_of(value).of(value.untyped_storage().clone())
        self._kept.append(made := Own(copy, True))
        return made

    def _traced(self, compute: Callable[[], Any], nodes: tuple[Any, ...]) -> Traced:
        self._numbers += 1
        return Traced(compute, nodes, self._numbers)

    def add(self, pending: Pending, result: Any) -> bool:
        """Record what an operator has returned; returns False if that cannot be repeated."""
        single = not isinstance(result, list | tuple)
        items = [result] if single else list(result)
        if not items or not all(map(_is_plain, items)):
            return False
        func, operands, spec, args, _, written = pending
        self._count += 1
        if written is not None:
            self._forget(args[0])
            items, single = [args[0]], True
        if "empty" in str(func):  # its values mean nothing
            self._empty.add(self._count)
        known = [one for one in operands if isinstance(one, Formula)]
        tags = func.tags if isinstance(func, OpOverload) else ()
        sized = func is _part or torch.Tag.dynamic_output_shape in tags
        for index, one in enumerate(items):
            formula = Computed(func, operands, spec, None if single else index, written)
            self._kept_alive(formula, *known)
            made = _Made(one, formula, self._count, one.untyped_storage())
            self._made.setdefault(memory_of(one), []).append(made)
            if sized:
                self._guard(formula, one)
        return True

    def _forget(self, tensor: Tensor) -> None:
        """Forget what is known of the tensors over a memory that is written to."""
        memory = memory_of(tensor)
        self._kept.append(self._made.pop(memory, ()))
        self._memory.pop(memory, None)
        for key in [k for k, one in self._born.items() if memory_of(one) == memory]:
            self._kept.append(self._born.pop(key))

    def index(self, tensor: Tensor, nodes: tuple[Any, ...], index: Callable[[], Any]) -> Any:
        """Returns the part of a CPU tensor at an index with traced numbers; None if calls cannot
        compute it.
        """
        if not _is_plain(tensor) or tensor.requires_grad or self._count >= _MOST:
            return None
        with without_modes():
            formula = self._operand(tensor)
            if formula is None:
                return None
            try:
                result = _part(tensor, index())
            except Exception:  # which the function raises, with the number itself
                return None
        spec = pytree.tree_flatten(((tensor, 0), {}))[1]
        traced = self._traced(index, nodes)
        pending = Pending(_part, [formula, traced], spec, (tensor,), {})
        return result if self.add(pending, result) else None

    # Values ---------------------------------------------------------------------------------------

    def compare(self, pending: Pending) -> None:
        """Compare the values of an operator's arguments."""
        leaves = pytree.tree_leaves((pending.args, pending.kwargs))
        for one, value in zip(pending.operands, leaves, strict=True):
            if isinstance(one, Traced):
                for node in one.nodes:
                    node.pin()
            elif isinstance(one, Computed | Part):
                self._compare(one, value)

    def _compare(self, formula: Formula, tensor: Tensor) -> None:
        """Compare the values of a tensor in each call; if there are many, those from which it is
        computed.
        """
        if tensor.numel() > LARGEST_GUARD:
            if not all(isinstance(x, Tensor) for x in self._roots.get(id(formula), {}).values()):
                self._refuse()
            self.compared.update(self._roots.get(id(formula), {}))
            for node in _nodes_of(formula):
                node.pin()
            return
        with without_modes():
            value = tensor.detach().clone()
        self._guard(formula, tensor, value)

    def is_computed(self, tensor: Tensor) -> bool:
        """Returns True if a tensor, or one over its memory, is the result of an operator."""
        return memory_of(tensor) in self._made

    def fix(self, tensor: Tensor) -> None:
        """Compare the values from which a tensor, and those over its memory, are computed."""
        memory = memory_of(tensor)
        made = self._made.get(memory, [])
        if memory in self._outside:
            made = [one for one in made if place_of(one.tensor) == place_of(tensor)] or made
        for one in made:
            if one.together not in self._empty:
                self._compare(one.formula, one.tensor)
            self._used.add(one.together)
        if memory not in self._outside:
            self._kept.append(self._made.pop(memory, None))
            self._born.update((id(one.tensor), one.tensor) for one in made)
            self._memory[memory] = tensor

    def keep(self, tensor: Tensor) -> None:
        """Handle a tensor that leaves the function: it is a view of an argument, or the values from
        which it is computed must be compared.
        """
        self._keep_shared(tensor)
        if self.has(tensor):
            self.fix(tensor)
        elif any(one.tensor is tensor for one in self._made.get(memory_of(tensor), ())):
            self._born[id(tensor)] = tensor

    def settle(self) -> None:
        """Compare the arguments of what was computed and not used: code may have read it in a way
        that is not seen.
        """
        for memory, made in list(self._made.items()):
            for one in made if memory not in self._outside else ():
                if one.together not in self._used | self._empty:
                    self._compare(one.formula, one.tensor)

    def guards(self) -> list[CallGuard]:
        """Returns the guards of the state's tensors, and of what is computed, if anything is."""
        found: list[CallGuard] = [KeptTensors(self._read.values())] if self._read else []
        return [*found, HostFormulaGuard(list(self._guarded.values()))] if self._guarded else found


def _part(tensor: Tensor, index: Any) -> Tensor:
    return Tensor.__getitem__(tensor, index)


def _nodes_of(formula: Any) -> Iterable[Any]:
    if isinstance(formula, Traced):
        yield from formula.nodes
    elif isinstance(formula, Computed):
        for one in formula.operands:
            yield from _nodes_of(one)
    elif isinstance(formula, Part):
        yield from _nodes_of(formula.whole)


def _is_operand(value: Any) -> bool:
    if type(value) is TracedFloat:
        return value.node.in_python and value.node.known
    return isinstance(value, Tensor) or type(value) in _PLAIN


def _is_plain(value: object) -> bool:
    """Returns True for a CPU tensor all of whose values are in its memory."""
    if type(value) is not Tensor or value.device.type != "cpu":
        return False
    if value.layout is not torch.strided or value.is_quantized or value.is_neg() or value.is_conj():
        return False
    return not torch_c.functorch.is_functorch_wrapped_tensor(value)
