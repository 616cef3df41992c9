"""Lifts the state that a traced function reads and writes: cells, CPU tensors and random state.

While a `Lifting` is active in a thread, every read of a cell that existed before becomes an input
of the program, and every write to one stays in the trace. Nothing outside changes, so a failed
trace changes no tensors.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import numpy as np
import torch
from jax import Array
from jax.extend.core import Primitive
from jax.sharding import Sharding

from calque.device.kernels.trace_checks import Failure
from calque.device.memory.cell import Cell, active, read, x64
from calque.device.memory.host import host_array
from calque.device.memory.host_reads import AssumesValues
from calque.device.memory.moving_views import MovingViews
from calque.device.memory.rng import pack
from calque.device.runtime.dtypes import to_numpy
from calque.device.runtime.interrupts import tracing
from calque.device.runtime.placement import placed, placement_of
from calque.device.runtime.staged_calls import stage
from calque.errors import TraceError, noting_refusals, unrepeatable
from calque.errors.handlers import settles
from calque.program.compile_flags import announced_as_compiling
from calque.program.host_results import memory_of
from calque.program.sources import CellSource, HostSource, RandomSource, Source
from calque.upstream.jax_internals import eval_context
from calque.upstream.torch_internals import disable_current_modes

_SEGMENT_MARK = 0xCA10_0000_0000_0000

input_p: Primitive = Primitive("calque_input")
"""Represents an input of the program in a jaxpr until the trace has found all inputs."""


@input_p.def_abstract_eval
def _input_aval(*, slot: int, shape: tuple[int, ...], dtype: np.dtype, weak: bool) -> Any:
    return jax.core.ShapedArray(shape, dtype, weak_type=weak)


class Input:
    """An input of a program.

    Attributes:
        source: its source in each call.
        shape, dtype, weak: those of the array.
        name: its name in the user's program, if any.
        placement: the placement of the array when the program was traced.
    """

    __slots__ = ("dtype", "name", "placement", "shape", "source", "weak")

    def __init__(self, source: Source, shape: tuple[int, ...], dtype: np.dtype, weak: bool) -> None:
        self.source: Source = source
        self.shape: tuple[int, ...] = shape
        self.dtype: np.dtype = dtype
        self.weak: bool = weak
        self.name: str = source.name
        self.placement: Sharding | None = None

    @property
    def aval(self) -> Any:
        """The abstract value of the array."""
        return jax.core.ShapedArray(self.shape, self.dtype, weak_type=self.weak)


class Lifting:
    """The state as seen by one trace; implements `device.memory.cell.Trace`."""

    def __init__(
        self, checks: bool | None = None, assumptions: AssumesValues | None = None
    ) -> None:
        self.assumptions = assumptions
        self.failures: list[Failure] | None = None if checks is None else []
        self.looking: bool = checks is True
        self.moving: MovingViews = MovingViews()
        self.callbacks = True
        self.inputs: list[Input] = []
        self.values: dict[Cell, Array] = {}
        self.cell_slots: dict[Cell, int] = {}
        self.written: dict[Cell, None] = {}
        self.fresh: dict[int, weakref.ref[Cell]] = {}
        self.placements: weakref.WeakKeyDictionary[Cell, Any] = weakref.WeakKeyDictionary()
        self.texts: dict[str, Any] = {}
        self.host_slots: dict[int, Array] = {}
        self.host_born: dict[int, torch.Tensor] = {}
        self.host_memory: dict[int, torch.Tensor] = {}
        self._segments: list[Any] = []
        self._segment, self._drawn = 0, 0
        self.draws: int = 0
        self.random_source: Callable[[], Array] = self._device_state
        self.trace_number: Callable[[Array], Any] | None = None
        self.seen_apart: Callable[[], AbstractContextManager[None]] = nullcontext
        self.on_write: Callable[[Cell, Array], None] | None = None
        self.on_host_input: Callable[[torch.Tensor], None] | None = None
        self.host_computations: Any = None

    # The cells ------------------------------------------------------------------------------------

    def is_fresh(self, cell: Cell) -> bool:
        """Returns True if a cell was created in this trace."""
        reference = self.fresh.get(id(cell))
        return reference is not None and reference() is cell

    def read(self, cell: Cell) -> Array:
        """Returns the value of a cell at this point of the trace."""
        value = self.values.get(cell)
        if value is not None:
            return value
        if self.is_fresh(cell):
            return cell.array
        value = self.values[cell] = self._lift(cell)
        return value

    def _lift(self, cell: Cell) -> Array:
        array = cell.array
        if isinstance(array, jax.core.Tracer):
            raise unrepeatable(
                f"a tensor of shape {array.shape} from another jitted function (or from jax.jit, "
                "jax.grad)",
                "which has ended or is still being traced, is used here",
                "Return it from that function. For jax.jit and jax.grad, make a JAX function of "
                "the jitted one: apply, params = calque.functional(fn).",
            )
        self.cell_slots[cell] = len(self.inputs)
        traced = self.new_input(CellSource(cell), array.shape, array.dtype)
        self.inputs[-1].placement = placement_of(array)
        return traced

    def write(self, cell: Cell, array: Array) -> None:
        """Set the value of a cell from this point of the trace."""
        if self.is_fresh(cell):
            placement = self.placements.get(cell) if self.placements else None
            cell.array = array if placement is None else placed(array, placement)
            return
        if self.on_write is not None:
            self.on_write(cell, array)
        if array.shape != cell.array.shape or array.dtype != cell.array.dtype:
            raise unrepeatable(
                "a tensor made outside of calque.jit is resized inside it,",
                f"from {cell.array.shape} to {array.shape}",
                "Resize it before the call.",
            )
        self.values[cell] = array
        self.written[cell] = None

    def created(self, cell: Cell, storage: torch.UntypedStorage) -> None:
        """Record a cell created in the trace."""
        self.fresh[id(cell)] = weakref.ref(cell)

    def new_input(self, source: Source, shape: Any, dtype: Any, weak: bool = False) -> Array:
        """Returns a new input of the program,
        as a traced array (weakly typed for Python numbers).
        """
        slot, shape, dtype = len(self.inputs), tuple(shape), np.dtype(dtype)
        made = Input(source, shape, dtype, weak)
        self.inputs.append(made)
        return stage(input_p, made.aval, slot=slot, shape=shape, dtype=dtype, weak=weak)

    # CPU tensors ----------------------------------------------------------------------------------

    def constant(self, tensor: torch.Tensor) -> Array:
        """Returns a CPU tensor's value: a constant if it was created in the trace, otherwise an
        input.
        """
        if id(tensor) in self.host_born:
            return self._host_constant(tensor)
        source = None if self.host_computations is None else self.host_computations.source(tensor)
        if source is None and self._created(tensor):
            with self.suspended():
                tensor = tensor.detach().clone()  # as the function may write to it later
        elif source is None and self.on_host_input is not None:
            self.on_host_input(tensor)
        key = id(tensor if source is None else source)
        known = self.host_slots.get(key)
        if known is None:
            dtype = to_numpy(tensor.dtype)
            known = self.new_input(source or HostSource(tensor), tensor.shape, dtype)
            self.host_slots[key] = known
        return known

    def forget_moved(self) -> None:
        """Release CPU tensors that were moved to the device, as with `module.to("jax")`."""
        for held in (self.host_born, self.host_memory):
            for key in [k for k, tensor in held.items() if tensor.device.type != "cpu"]:
                del held[key]

    def _created(self, tensor: torch.Tensor) -> bool:
        """Returns True if the trace has created a CPU tensor's memory, which no array shares."""
        known = memory_of(tensor) in self.host_memory
        return known and tensor.untyped_storage().resizable()

    def _host_constant(self, tensor: torch.Tensor) -> Array:
        with self.suspended():
            array = host_array(tensor)
        with x64():
            return jax.numpy.asarray(array)

    def number(self, tensor: torch.Tensor) -> Any:
        """Returns a traced tensor as a traced Python number; None if numbers must be known.

        A traced number is real, and not a bool.
        """
        if self.trace_number is None or tensor.dtype == torch.bool or tensor.is_complex():
            return None
        return self.trace_number(read(tensor))

    def value(self, array: Array, use: str, error: Callable[[], Exception]) -> np.ndarray | None:
        """Returns a value that the host reads, if it may be assumed."""
        return None if self.assumptions is None else self.assumptions.value(array, use, error)

    def shown(self, file: str) -> bool:
        """Returns True if the text of a tensor for code in this file contains its values."""
        return self.assumptions is not None and self.assumptions.shown(file)

    @contextmanager
    def unassuming(self) -> Iterator[None]:
        """A context manager in which no value is assumed."""
        before, self.assumptions = self.assumptions, None
        try:
            yield
        finally:
            self.assumptions = before

    def refused(self, error: TraceError) -> BaseException:
        """Returns the error for an action that no program can repeat."""
        return error if self.assumptions is None else self.assumptions.refused(error)

    # Random state ---------------------------------------------------------------------------------

    def _device_state(self) -> Array:
        """Returns the device's random state, as an input of the program."""
        return self.new_input(RandomSource(), (2,), np.uint64)

    def draw(self) -> Array:
        """Returns the packed key of the next draw."""
        if not self._segments:
            self._segments.append(self.random_source())
        base = self._segments[self._segment]
        offset = self._drawn
        self._drawn += 1
        if self._segment == 0:
            self.draws = max(self.draws, self._drawn)
        with x64():
            return jax.numpy.asarray(base) + np.array([0, offset], np.uint64)

    def peek(self) -> Array:
        """Returns the packed key of the next draw, without drawing."""
        segment, drawn, draws = self._segment, self._drawn, self.draws
        packed = self.draw()
        self._segment, self._drawn, self.draws = segment, drawn, draws
        return packed

    @contextmanager
    def drawing_from(self, packed: Array) -> Iterator[None]:
        """A context manager that repeats the draws after a key from `peek` without changing the
        trace's state.
        """
        before = self._segments, self._segment, self._drawn
        self._segments, self._segment, self._drawn = [None, packed], 1, 0
        try:
            yield
        finally:
            self._segments, self._segment, self._drawn = before

    def set_random(self, packed: np.ndarray) -> None:
        """Implements `manual_seed` in the trace: later draws count from a constant."""
        if not self._segments:
            self._segments.append(self.random_source())
        self._segments.append(packed)
        self._segment, self._drawn = len(self._segments) - 1, 0

    def get_random(self) -> tuple[int, int]:
        """Returns a token of the random state at this point,
        for `restore_random` in the same trace.
        """
        return _SEGMENT_MARK + self._segment, self._drawn

    def restore_random(self, seed: int, offset: int) -> None:
        """Restore the state for which `get_random` returned the token.

        Raises:
            TraceError: the state was not taken in this trace.
        """
        segment = seed - _SEGMENT_MARK
        if not 0 <= segment <= len(self._segments):
            self.set_random(pack(seed, offset))
            return
        self._segment, self._drawn = segment, offset

    def forget_draws(self) -> None:
        """Reset the draws: the next draw is the first, from a state that is read again."""
        self._segments, self._segment, self._drawn = [], 0, 0

    def final_random(self) -> tuple[int, int] | None:
        """Returns the final (seed, offset) if the trace seeded the device, otherwise None."""
        if self._segment == 0:
            return None
        packed = self._segments[self._segment]
        return int(packed[0]), int(packed[1]) + self._drawn

    # Activation -----------------------------------------------------------------------------------

    @contextmanager
    @settles
    def activated(self) -> Iterator[None]:
        """A context manager that makes this the trace of the thread."""
        previous, active.trace = active.trace, self
        inlining, active.inlining = active.inlining, True
        apart, tracing.apart = tracing.apart, self.apart
        try:
            with x64(), announced_as_compiling():
                yield
        finally:
            active.trace, active.inlining = previous, inlining
            tracing.apart = apart

    @contextmanager
    def unchecked(self) -> Iterator[None]:
        """A context manager without checks, for JAX's control flow, whose values do not belong to
        the program.
        """
        failures, looking = self.failures, self.looking
        self.failures, self.looking = None, False
        try:
            yield
        finally:
            self.failures, self.looking = failures, looking

    @contextmanager
    def apart(self) -> Iterator[None]:
        """A context manager for code that is not part of the program, such as a signal handler."""
        with self.suspended(), disable_current_modes(), self.seen_apart(), noting_refusals():
            yield

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """A context manager for running eagerly during the trace; tensors created here exist before
        the program.
        """
        previous, active.trace = active.trace, None
        try:
            with eval_context():  # ensure_compile_time_eval would affect JAX's trace caches
                yield
        finally:
            active.trace = previous
