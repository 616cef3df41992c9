"""Makes optimizers traceable: creates state, moves step counts to the device, and traces numbers.

By default, an optimizer creates its state in its first step, counts steps on the CPU, and computes
with Python floats that schedulers change. While a function is traced, and only around
`Optimizer.step`, this module creates the missing state eagerly (so that the program has one form
from the first call on) and moves the step counts to the device. For the time of the step, it sets
`capturable` (which computes with step counts on the device), replaces float hyper-parameters with
traced numbers, and converts step counts to float64: in eager mode both are Python floats, and `1 -
0.999 ** step` keeps only four digits in float32.
"""

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from types import CodeType
from typing import Any

import jax
import numpy as np
import torch
from jax import Array
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from calque.device.memory.cell import active, cell_of, read, write, x64
from calque.device.memory.wrapping import wrap
from calque.device.runtime.staged_calls import call
from calque.errors import TraceError, unrepeatable
from calque.errors.handlers import settles
from calque.jitting.number_questions import asks_for_types
from calque.jitting.numbers import is_number, is_pytorchs, learn, step_functions
from calque.jitting.optimizer_numbers import Group, OptimizerNumbers
from calque.jitting.optimizer_rollback import Prepared
from calque.jitting.optimizer_states import (
    cells_of,
    counts_of,
    create_momentum_buffers,
    has_pytorchs_init_group,
    run_init_group,
    states_of,
)
from calque.jitting.state_placement import place_state
from calque.program.call_serialization import wait_for_traces
from calque.program.lifting import Lifting
from calque.program.traced_functions import functions_in
from calque.program.traced_numbers import PICKS, Comparisons, NumberNeeded, Place, number_of
from calque.program.trees import is_tensor
from calque.state import MISSING, Running
from calque.state.stand_ins import standing_in
from calque.upstream.torch_internals import HOOKED_STEP


class OptimizerTracing:
    """The temporary tensors and numbers of the optimizers that step in one trace.

    Attributes:
        optimizers: each optimizer that stepped.
        watch: records the comparisons made with hyper-parameters.
        running: observes the code that runs.
        in_steps: the code that has run in steps of optimizers, where numbers are traced.
        numbers: the traced numbers in param groups and states.
        on_prepared: called before an optimizer steps, with the containers and keys that were
            prepared for it.
        on_count: called for each step count that is read without an operator.
        prepared: the changes that remain if the call succeeds.
        kept_plain: variables to which a step assigned values that a program cannot compute.
    """

    def __init__(self, lifting: Lifting, prepared: Prepared) -> None:
        self.lifting = lifting
        self.prepared: Prepared = prepared
        self._before = len(prepared)
        self.watch: Comparisons = Comparisons()
        self.numbers: OptimizerNumbers = OptimizerNumbers(lifting, self.watch)
        self.optimizers: dict[Optimizer, None] = {}
        self._replaced: list[tuple[Group, str, Any]] = []
        self._widened: list[tuple[Group, torch.Tensor]] = []
        self.running: Running | None = None
        self.in_steps: Collection[CodeType] = ()
        self.on_prepared: Callable[[Optimizer, list[tuple[Any, Any]]], None] = lambda *_: None
        self.on_count: Callable[[torch.Tensor], object] = lambda step: None
        self.kept_plain: set[Place] = set()
        self.reads_tensors: bool = True
        self._kept_waiting: list[Any] = []
        self._picks: list[tuple[dict[str, Any], str]] = []
        self._exchanged: list[Any] = []
        self._made = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """A context manager that handles every optimizer step of this trace."""
        handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._give_back()
            self.numbers.end()

    def check_unchanged(self, running: Running) -> None:
        """Check that no scheduler has changed a hyper-parameter.

        Args:
            running: has observed the function.

        Raises:
            TraceError: a scheduler has changed one.
            NumberNeeded: other code has changed one that was traced.
        """
        place = running.scheduler_stepped
        changed = self.numbers.changed(place is not None)
        if changed is not None:
            raise _changed(type(changed[0]).__name__, changed[1], place)

    def give_up_in_step(self) -> None:
        """Handle an error, which in a step may be caused by traced numbers.

        Raises:
            NumberNeeded: numbers were traced, and must not be in the next trace.
        """
        places = self._traced_now()
        if self.watch.stepping is not None and not self.watch.is_pytorchs and places:
            raise NumberNeeded(places)

    def _traced_now(self) -> set[Place]:
        """Returns the variables of the numbers traced in the step."""
        found = self.numbers.traced_now()
        return found | {OF_TENSORS} if self.watch.has_read else found

    def rollback(self) -> None:
        """Undo a failed trace's changes of optimizers: created state and moved step counts."""
        self.prepared.take_back(self._before)
        self.numbers.rollback()

    def _before_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if active.trace is not self.lifting or _steps_within_itself(optimizer):
            return
        _check_device(optimizer)
        self.watch.stepping = type(optimizer).__name__
        self.watch.is_pytorchs = is_pytorchs(optimizer)
        self._made = self._is_made(optimizer)
        before = len(self.prepared)
        self._create_state(optimizer)
        self._move_steps(optimizer)
        # Schedulers check this before they warn.
        self._put(vars(optimizer), "_opt_called", True)
        if not self._made:
            self.on_prepared(optimizer, self.prepared.places(before))
            self.optimizers[optimizer] = None
        # Otherwise created without `__init__`.
        if "_optimizer_state_dict_pre_hooks" in vars(optimizer):
            self._kept_waiting.append(optimizer.register_state_dict_pre_hook(_wait))
        for group in optimizer.param_groups:
            self._replace_options(group)
        if not self._made:
            self.numbers.prepare(optimizer)
            self.numbers.install(optimizer)
        self._widen_steps(optimizer)
        place = None if self.watch.is_pytorchs else OF_TENSORS
        if self.reads_tensors:
            self.watch.has_read = False
            self.lifting.trace_number = lambda array: number_of(array, self.watch, place)
        self._exchange(optimizer)
        if self.running is not None:
            self.running.in_step(True)

    def _after_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if active.trace is self.lifting and not _steps_within_itself(optimizer):
            if self.running is not None:
                self.running.in_step(False)
            if not (self.watch.is_pytorchs or self._made):
                learn(optimizer, self.numbers.assigned(optimizer))
                if any(map(asks_for_types, self.in_steps)):
                    self.kept_plain |= self._traced_now()
            place_state(optimizer)
            with torch.no_grad():
                self._widened = [(s, step) for s, step in self._widened if "step" in s]
                _give_counts(self._widened)
            self._give_back()

    def _is_made(self, optimizer: Optimizer) -> bool:
        """Returns True if the trace has created an optimizer and all of its parameters.

        Its state is then part of the program, and its numbers are constants.
        """
        cells = cells_of(optimizer)
        return bool(cells) and all(c is not None and self.lifting.is_fresh(c) for c in cells)

    def _create_state(self, optimizer: Optimizer) -> None:
        """Run the optimizer's lazy initialization, outside the program unless created in it."""
        known = {p: set(s) for p, s in states_of(optimizer)}
        place = nullcontext() if self._made else self.lifting.suspended()
        try:
            with place, torch.no_grad():
                for group in optimizer.param_groups:
                    if isinstance(optimizer, torch.optim.SGD):
                        create_momentum_buffers(optimizer, group)
                    elif has_pytorchs_init_group(optimizer):
                        run_init_group(optimizer, group)
                place_state(optimizer)
        finally:
            self._note_state(optimizer, known)

    @settles
    def _note_state(self, optimizer: Optimizer, known: dict[torch.Tensor, set[Any]]) -> None:
        """Record state that is not yet known."""
        if self._made:
            return
        for parameter, state in states_of(optimizer):
            if parameter not in known:
                self.prepared.add(optimizer.state, parameter)
                continue
            for key in state.keys() - known[parameter]:
                self.prepared.add(state, key)

    def _move_steps(self, optimizer: Optimizer) -> None:
        """Move step counts from the CPU to the parameters' device."""
        arrays: dict[Any, Array] = {}  # equal counts share an array (see `program.equal_state`)
        for holder, key, value in counts_of(optimizer):
            if self._made:
                holder[key] = value.to("jax")
                continue
            with self.lifting.suspended():
                moved = value.to("jax")
            cell = cell_of(moved)
            # Not `value.item()`, which would make the number a guard.
            number = np.asarray(cell.array).tobytes()
            cell.array = arrays.setdefault((value.shape, value.dtype, number), cell.array)
            self._put(holder, key, moved)

    @settles
    def _put(self, holder: Any, key: Any, value: Any) -> None:
        before, holder[key] = holder.get(key, MISSING), value
        if not self._made:
            self.prepared.add(holder, key, before)

    def _widen_steps(self, optimizer: Optimizer) -> None:
        if not self.watch.is_pytorchs:
            return  # other optimizers may depend on the dtype
        for _, state in states_of(optimizer):
            step = state.get("step")
            if (
                isinstance(step, torch.Tensor)
                and step.dtype == torch.float32
                and step.ndim == 0
                and step.device.type == "jax"
            ):
                self._widened.append((state, step))
                self.on_count(step)
        if not self._widened:
            return
        counts = [read(step) for _, step in self._widened]
        with x64():
            wide = call(_foreach_widened, counts)
        for (state, _), array in zip(self._widened, wide, strict=True):
            state["step"] = wrap(array)

    def _replace_options(self, group: Group) -> None:
        if group.get("capturable") is False:
            self._replaced.append((group, "capturable", False))
            group["capturable"] = True
        if group.get("fused"):  # a single operator, whose schema needs Python floats
            self._replaced.append((group, "fused", group["fused"]))
            group["fused"] = False

    @settles
    def _exchange(self, optimizer: Optimizer) -> None:
        """Make Python functions accept traced numbers: Adafactor uses `max` and `min` on numbers
        that it reads from tensors, other optimizers take square roots.
        """
        if self.watch.is_pytorchs:
            names = vars(sys.modules[type(optimizer).step.__module__])
            for name, pick in PICKS.items():
                if name not in names:
                    names[name] = pick
                    self._picks.append((names, name))
            return
        spaces = {id(f.__globals__): f.__globals__ for f in step_functions(type(optimizer))}
        context = standing_in(functions_in(spaces.values()))
        context.__enter__()
        self._exchanged.append(context)

    @settles
    def _give_back(self) -> None:
        self.kept_plain |= self.numbers.take_back()
        self.watch.stepping, self.watch.is_pytorchs = None, False
        self.lifting.trace_number = None
        while self._exchanged:
            self._exchanged.pop().__exit__(None, None, None)
        for group, key, value in reversed(self._replaced):
            group[key] = value
        self._replaced.clear()
        for names, name in self._picks:
            del names[name]
        self._picks.clear()
        for state, step in self._widened:
            state["step"] = step
        self._widened.clear()
        for handle in self._kept_waiting:
            handle.remove()
        self._kept_waiting.clear()


@jax.jit
def _foreach_widened(*counts: Array) -> list[Array]:
    """Returns foreach operators that widen step counts (see `program.foreach_splitting`)."""
    return [count.astype(np.float64) for count in counts]


@jax.jit
def _foreach_narrowed(*counts: Array) -> list[Array]:
    return [count.astype(np.float32) for count in counts]


def _give_counts(widened: list[tuple[Any, torch.Tensor]]) -> None:
    """Write back step counts that were traced in a different dtype."""
    counts = [state["step"] for state, _ in widened]
    if any(not is_tensor(c) or c.ndim or c.dtype != torch.float64 for c in counts):
        for count, (_, step) in zip(counts, widened, strict=True):
            step.copy_(count)
        return
    if not counts:
        return
    with x64():
        narrow = call(_foreach_narrowed, [read(count) for count in counts])
    for (_, step), array in zip(widened, narrow, strict=True):
        write(step, array)


def _check_device(optimizer: Optimizer) -> None:
    """Raise TraceError if an optimizer would step parameters that are on the CPU."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.device.type == "cpu" and parameter.grad is not None:
                name = type(optimizer).__name__
                raise unrepeatable(
                    f"{name} steps a parameter of shape {tuple(parameter.shape)} that is on the "
                    "CPU",
                    "inside calque.jit, whose program runs on the jax device",
                    f'Move the model before the call, `model.to("jax")`, and its inputs; {name} '
                    "then steps the moved parameters.",
                )


def _changed(name: str, key: str, place: object) -> TraceError:
    """Returns the error for a hyper-parameter that a scheduler has changed, at its line."""
    return TraceError(
        f"{place}: {key!r} of {name} is changed inside calque.jit by scheduler.step(), which one "
        "program cannot repeat.\nChange it outside the jitted function, after the call: the "
        "program reads the param groups at each call."
    )


def _wait(optimizer: Optimizer) -> None:
    """Make a thread that saves an optimizer wait while another thread traces the numbers."""
    if active.trace is None:
        wait_for_traces()


def _settings(group: Group, traced: Collection[Place]) -> Group:
    """Returns the settings in a param group for which a program is compiled."""
    return {
        key: value
        for key, value in group.items()
        if type(value) is not float and key not in _NO_SETTINGS and not is_number(value)
        if not is_tensor(value) and (not traced or (id(group), key) not in traced)
    }


OF_TENSORS: Place = (0, "values of tensors")
"""Represents all numbers that a step reads from tensors, if these are not specialized."""
_NO_SETTINGS = frozenset(("params", "capturable"))


def settings_of(optimizer: Optimizer, traced: Collection[Place] = ()) -> list[Group]:
    """Returns the settings of each param group for which a program is compiled.

    Args:
        optimizer: the optimizer.
        traced: the variables whose numbers are inputs.
    """
    return [_settings(group, traced) for group in optimizer.param_groups]


def _steps_within_itself(optimizer: Optimizer) -> bool:
    """Returns True if the step of a class calls its base class's step, which has its own hooks."""
    count, frame = 0, sys._getframe(2)
    while frame is not None and count < 2:
        count += frame.f_code is HOOKED_STEP and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return count == 2
