"""`Recorder`: records the calls of PyTorch functions and modules that a program makes.

A `TorchFunctionMode` sees every call, however the program refers to the function. It is disabled
within its handler, so only outermost calls are recorded. The program runs as usual: arguments and
results are passed on unchanged.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from calque.state import call_watched, unwatched
from calque.tracing.core.origins import program_frame
from calque.tracing.core.scope import Scope
from calque.tracing.graph.checks import fresh
from calque.tracing.graph.random_calls import make_generator, manual_seed, set_random_state
from calque.tracing.record.arguments import ArgumentValues, takes_data
from calque.tracing.record.contexts import RecordedContexts
from calque.tracing.record.escapes import Escape
from calque.tracing.record.events import Begin, Event, ModuleCall, ModuleEnd, Place, RecordedCall
from calque.tracing.record.generators import MadeGenerator
from calque.tracing.record.keeping import Keeper
from calque.tracing.record.leaf_modules import mark_changed
from calque.tracing.record.local import Local
from calque.tracing.record.numbers import RunNumbers
from calque.tracing.record.operator_mode import set_properties
from calque.tracing.record.results import KeptResults
from calque.tracing.record.tracer import WithinTrace
from calque.tracing.record.values import RunValue, Values
from calque.tracing.symbolic.assumptions import Assumptions
from calque.tracing.symbolic.generators import GeneratorStates, set_within
from calque.tracing.symbolic.leaves import ModuleLeaves
from calque.upstream import torch_c

_in_functorch = torch_c.functorch.peek_interpreter_stack
_LIFTED = torch.ops.aten.lift_fresh.default

Args = tuple[Any, ...]


class Recorder(WithinTrace):
    """A recording in progress; the current trace of its threads (`calque.tracing.core.active`).

    Args:
        root: the program.
        strict: whether to refuse reads of tensors' values.
        keeper: keeps and edits the results of some calls.

    Attributes:
        events: what happened, in order.
        problems: why a graph of it would be wrong, in words.
        escapes: what was read into Python.
        asked: what the program asked of the looks of its tensors.
        asked_of_members: parameters and constants, what was asked of each, and the call of the
            module that asked.
        keeper: as given.
        leaves: the modules as they were before.
        ended: whether the recording is over, whatever still runs.
        running: the calls that run now, in whatever threads.
        code: the program's code object.
        given: the values of the arguments.
        numbers: the numbers that were read, and their uses.
        generators: the generators that the program reaches, and their states.
        follows_default_generator: whether the program may set the state of PyTorch's default
            generator.
    """

    path = None  # the run is real, so no path is chosen

    def __init__(self, root: Any, strict: bool, keeper: Keeper) -> None:
        self.tracer = self
        self.events: list[Event] = []
        self.problems: list[str] = []
        self.attributes: list[tuple[RunValue, str, Any]] = []
        self.escapes: list[Escape] = []
        self.asked: set[str] = set()
        self.asked_of_members: list[Any] = []
        self.keeper = keeper
        self.assumed: Assumptions = Assumptions()
        self.leaves: ModuleLeaves = ModuleLeaves({})
        self.scope: Scope = Scope("", None)
        self.values: Values = Values()
        self.given: set[RunValue] = set()
        self.given_containers: dict[int, Any] = {}
        self.arguments: ArgumentValues = ArgumentValues(self)
        self._contexts = RecordedContexts(self)
        self.ended = False
        self.local: Local = Local()
        self.refusal: Exception | None = None
        self.refused_at: Any = None
        self.numbers: RunNumbers = RunNumbers()
        self.generators: GeneratorStates = GeneratorStates()
        self.follows_default_generator = False
        self._results = KeptResults(self, strict)
        self._paths: dict[int, str] = {}
        self._numbers: dict[int, int] = {}
        self._caught: list[tuple[RecordedCall, Exception]] = []
        self.running: list[RecordedCall] = []
        self.code: CodeType | None = None
        if isinstance(root, torch.nn.Module):
            self._paths = {id(module): name for name, module in root.named_modules()}

    @property
    def paths(self) -> list[str]:
        """The paths of the program's modules; only "" for a function."""
        return list(self._paths.values()) or [""]

    @property
    def contexts(self) -> RecordedContexts | None:
        """The open blocks of the program; None inside a call, which handles its own blocks."""
        inside = self.local.call is not None or self.ended or _in_functorch() is not None
        return None if inside else self._contexts

    # Events

    def place(self) -> Place | None:
        """Returns the running line of the program; its first one after the run, when the result and
        what it has left are inspected.
        """
        if self.ended and self.code is not None:
            return self.code.co_filename, self.code.co_firstlineno, self.code.co_name
        frame = program_frame(2)
        if frame is None:
            return None
        return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name

    def create_node(self, kind: str, target: Any, args: Args, kwargs: dict[str, Any]) -> RunValue:
        """Record a call that the caller makes."""
        call = RecordedCall(target, args, kwargs, self.local.module, self.place())
        call.result = RunValue()
        self.events.append(call)
        return call.result

    def create_proxy(self, kind: str, target: Any, args: Args, kwargs: dict[str, Any]) -> Any:
        """Make a call and record it."""
        return self.run(target, args, kwargs)

    @unwatched
    def called(self, func: Callable[..., Any], args: Args, kwargs: dict[str, Any]) -> Any:
        """Handle a call of a PyTorch function by the program."""
        given = (*args, kwargs["generator"]) if "generator" in kwargs else args
        for generator in given:
            if type(generator) is torch_c.Generator and self.generators.has(generator):
                with self.drawing(generator):
                    return self._called(func, args, kwargs)
        return self._called(func, args, kwargs)

    def _called(self, func: Callable[..., Any], args: Args, kwargs: dict[str, Any]) -> Any:
        if self.local.call is not None or not self.local.is_entered or self.ended:
            return call_watched(func, *args, **kwargs)
        if _in_functorch() is not None:
            self._results.guard_shapes_in_functorch(args)
            return call_watched(func, *args, **kwargs)
        name = getattr(func, "__name__", "")
        if (func is torch.autograd.grad or name == "__get__") and _is_of_transform(args[0]):
            return call_watched(func, *args, **kwargs)
        if func is torch_c.set_grad_enabled:
            return self._contexts.set_grad(*args)
        if name == "__get__":
            attribute = func.__self__.__name__  # pyright: ignore[reportFunctionMemberAccess]
            return self.run(func, args, kwargs, getattr, (args[0], attribute))
        if name == "__set__":
            attribute = func.__self__.__name__  # pyright: ignore[reportFunctionMemberAccess]
            return self.run(func, args, kwargs, setattr, (args[0], attribute, args[1]))
        if name == "__deepcopy__":
            return self.run(func, args, kwargs, copy.deepcopy, args[:1])
        if name == "__iter__" and args[0].dim():
            return iter(self.run(torch.Tensor.unbind, args[:1], {}))
        return self.run(func, args, kwargs)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Handle a call of `copy.copy` by the program."""
        return self.run(copy.copy, (tensor,), {})

    def run(
        self,
        func: Callable[..., Any],
        args: Args,
        kwargs: dict[str, Any],
        target: Any = None,
        given: Args | None = None,
    ) -> Any:
        """Call a function for the program, and record its arguments and result.

        Args:
            target, given: the function and the arguments of the graph's call; by default the same.
        """
        local = self.local
        lower = self.arguments
        local.is_dynamic = False
        with torch_c.DisableTorchFunction():
            lowered = lower.tuple_of(args if given is None else given)
            named = lower.dict_of(kwargs) if kwargs else {}
        is_dynamic = local.is_dynamic
        call = RecordedCall(target or func, lowered, named, local.module, self.place())
        if self.numbers.all:
            is_dynamic |= self.numbers.use(call, func)
        if local.objects:
            lower.refuse_hidden(local.taken())
        call.grad = self._contexts.grad_beside()
        local.call = call
        self.running.append(call)
        try:
            result = call_watched(func, *args, **kwargs)
        except Exception as error:
            self._caught.append((call, error))
            raise
        finally:
            self.running.remove(call)
            local.call = None
        if func in (manual_seed, set_random_state):
            self.generators.drawn(torch.default_generator)
        with torch_c.DisableTorchFunction():
            if takes_data(call):
                self.arguments.made_of_data(result)
            else:
                self._results.add(call, args, result, is_dynamic)
            self.numbers.given(call)
        if self.keeper.sees_functions:
            path = call.module.path if call.module is not None else ""
            return self._kept(f"{path}:{call.name}", result)
        return result

    def _kept(self, name: str, result: object) -> Any:
        """Keeps or edits a result, and returns what the program gets instead."""
        keeper, local = self.keeper, self.local
        if not keeper.patterns or local.is_editing:
            return result
        local.is_editing = True
        try:
            for edit in keeper.edits_of(name):
                result = edit(result)
                if local.module is not None:
                    local.module.open()
        finally:
            local.is_editing = False
        if keeper.wants(name):
            with self.apart():
                keeper.keep(name, result)
        return result

    def operator(self, func: Any, args: Args, kwargs: dict[str, Any]) -> Any:
        """Record an operator that runs outside any call of the program."""
        with torch_c.DisableTorchFunction():  # reads of properties below are no calls
            return func(*args, **kwargs) if self.ended else self._operator(func, args, kwargs)

    def _operator(self, func: Any, args: Args, kwargs: dict[str, Any]) -> Any:
        if not self.local.is_entered:
            return func(*args, **kwargs)
        if func is _LIFTED and self.values.of(args[0]) is None:
            result = func(*args, **kwargs)
            self.arguments.made_of_data(result)
            return result
        local, lower = self.local, self.arguments
        local.is_dynamic = False
        lowered, named = lower.tuple_of(args), lower.dict_of(kwargs)
        call = RecordedCall(func, lowered, named, local.module, self.place())
        is_dynamic = local.is_dynamic
        self._results.guard_shapes(call)
        set_properties(call, func, args)
        local.call = call
        try:
            result = func(*args, **kwargs)
        finally:
            local.call = None
        call.what = "operator"
        self._results.add(call, args, result, is_dynamic)
        return result

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """A context manager in which nothing counts as a call of the program."""
        before, self.local.call = self.local.call, RecordedCall(None, (), {}, None, None)
        try:
            with torch_c.DisableTorchFunction():
                yield
        finally:
            self.local.call = before

    def note_made(self, tensor: torch.Tensor, constant: torch.Tensor) -> None:
        """Record that the program created a tensor from data without a call that modes
        intercept.
        """
        call = RecordedCall(fresh, (constant,), {}, self.local.module, self.place())
        call.result = self.values.add(tensor)
        self.events.append(call)

    def refuse(self, why: str, call: RecordedCall | None = None) -> None:
        """Record why a graph of this run would be wrong."""
        self.refuse_at(self.place() if call is None else call.place, why)

    def refuse_at(self, place: Place | None, why: str) -> None:
        """Like `refuse`, for a line."""
        where = f"{place[0]}:{place[1]} in {place[2]}: " if place is not None else ""
        self.problems.append(f"{where}{why}")

    @contextlib.contextmanager
    def drawing(self, generator: Any) -> Iterator[None]:
        """A context manager in which only recorded draws may advance a generator."""
        if self.generators.is_set(generator):
            self.refuse(set_within("that this line draws from"))
        try:
            yield
        finally:
            self.generators.drawn(generator)

    def make_generator(self, *args: Any, **kwargs: Any) -> Any:
        """Handle the creation of a `torch.Generator` by the program."""
        given = (*args, *kwargs.values())  # only the device
        return self.run(MadeGenerator, given, {}, make_generator, given)

    # Modules

    @unwatched
    def call(
        self,
        original: Callable[..., Any],
        module: torch.nn.Module,
        args: Args,
        kwargs: dict[str, Any],
    ) -> Any:
        """Handle a call of a module by the program."""
        local = self.local
        if local.call is not None or self.ended or _in_functorch() is not None:
            return call_watched(original, module, *args, **kwargs)
        if isinstance(module, torch.jit.ScriptModule):
            return self.run(original, (module, *args), kwargs, module, args)
        number = self._numbers.get(id(module), 0)
        self._numbers[id(module)] = number + 1
        path = self._paths.get(id(module), "")
        call = ModuleCall(module, path, number, local.module)
        call.place = self.place()
        with torch_c.DisableTorchFunction():
            call.args = self.arguments.tuple_of(args)
            call.kwargs = self.arguments.dict_of(kwargs)
        call.grad = self._contexts.grad_beside()
        call.is_open = bool(local.taken())
        self.leaves.add(module)
        leaves = self.leaves
        call.is_changed = leaves.is_changed_itself(module) or leaves.has_assigned(module)
        self.events.append(Begin(call))
        before, scope = local.module, self.scope.module_path
        local.module, self.scope.module_path = call, path
        try:
            result = call_watched(original, module, *args, **kwargs)
        finally:
            local.module, self.scope.module_path = before, scope
        with torch_c.DisableTorchFunction():
            call.result = self.arguments.of(result)
        call.is_open |= bool(local.taken())
        self.events.append(ModuleEnd(call))
        return self._kept(path, result)

    def end(self) -> None:
        """Handle the return of the program, which has caught the errors of calls that raised."""
        mark_changed(self.events, self.leaves.changed_since())
        followed = {id(number.escape) for number in self.numbers.followed()}
        self.escapes[:] = [
            escape._replace(is_followed=True) if id(escape) in followed else escape
            for escape in self.escapes
        ]
        for call, error in self._caught:
            what = f"{call.name} raised {type(error).__name__}, which the program caught"
            self.refuse(what, call)


def _is_of_transform(outputs: object) -> bool:
    """Returns True for results of a transform that is over: the function that `torch.func.vjp` has
    returned differentiates them, and its operators are recorded as those of the transform are.
    """
    parts = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return any(torch_c.functorch.is_gradtrackingtensor(part) for part in parts)


class FunctionMode(TorchFunctionMode):
    """Passes each call of a PyTorch function in a thread to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Args = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return self._recorder.called(func, args, kwargs or {})
