"""`Recorder`: notes the calls of PyTorch and of modules that a program makes while it runs.

A `TorchFunctionMode` sees every call, by whatever name the program got hold of the function; within
its handler it is off, so that the outermost call is the only one. The program runs as it would by
itself: the arguments are handed on as they are, and so is what comes back.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from calque.state import call_watched, unwatched
from calque.tracing.abstract.questions import ASPECTS
from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.core.origins import program_frame
from calque.tracing.core.scope import Scope
from calque.tracing.graph.answers import AUTOGRAD, HOST, answer_of, spoken
from calque.tracing.graph.checks import expect_setting, fresh
from calque.tracing.record import escapes
from calque.tracing.record.arguments import Arguments, holds_tensors
from calque.tracing.record.contexts import RecordedContexts
from calque.tracing.record.escapes import Escape
from calque.tracing.record.events import Begin, Call, End, Event, ModuleCall, Place
from calque.tracing.record.keeping import Keeper
from calque.tracing.record.local import Local
from calque.tracing.record.values import Value, Values
from calque.tracing.record.witness import tell
from calque.tracing.symbolic.assumptions import Assumptions
from calque.tracing.symbolic.leaves import Leaves
from calque.upstream import torch_c

_in_functorch = torch_c.functorch.peek_interpreter_stack
_LIFTED = torch.ops.aten.lift_fresh.default


class Recorder:
    """One recording while it is made; the trace of its threads (`calque.tracing.core.active`).

    Args:
        root: the program.
        strict: refuse what reads values of tensors.
        keeper: keeps and edits what some calls give.

    Attributes:
        events: what happened, in order.
        problems: why a graph of it would be wrong, in words.
        escapes: what was read into Python.
        asked: what the program asked of the looks of its tensors.
        keeper: as given.
        leaves: the modules as they were before.
        ended: whether the recording is over, whatever still runs.
    """

    path = None  # the trace decides nothing by itself: the run is real

    def __init__(self, root: Any, strict: bool, keeper: Keeper) -> None:
        self.tracer = self
        self.events: list[Event] = []
        self.problems: list[str] = []
        self.escapes: list[Escape] = []
        self.asked: set[str] = set()
        self.keeper = keeper
        self.assumed = Assumptions()
        self.leaves = Leaves({})
        self.scope = Scope("", None)
        self.values = Values()
        self.arguments = Arguments(self)
        self._contexts = RecordedContexts(self)
        self.ended = False
        self.local = Local()
        self.refusal: Exception | None = None
        self.refused_at: Any = None
        self._strict = strict
        self._paths: dict[int, str] = {}
        self._numbers: dict[int, int] = {}
        self._caught: list[tuple[Call, Exception]] = []
        if isinstance(root, torch.nn.Module):
            self._paths = {id(module): name for name, module in root.named_modules()}

    @property
    def paths(self) -> list[str]:
        """Those of the modules of the program; just "" for a function."""
        return list(self._paths.values()) or [""]

    # What `calque.trace` asks of a tracer whose program changes modules

    def set_attribute(self, module: torch.nn.Module, name: str, value: Any) -> bool:
        """The program assigns to an attribute of a module."""
        self.leaves.assigned(module)
        return True

    def delete_attribute(self, module: torch.nn.Module, name: str) -> None:
        """A trace in another thread sees deletions, and so does this one while it does."""
        self.leaves.assigned(module)

    def make_module(self, module: torch.nn.Module) -> None:
        """As `delete_attribute`, of modules that the program makes; they are opened."""

    def member_of(self, value: Any) -> Any:
        """What is assigned is what the program assigns."""
        return value

    def keep_mode(self, path: str, training: bool) -> bool:
        """A graph within the program has a check of its own, which runs now and in the graph."""
        owner = self.local.module.path if self.local.module is not None else ""
        full = ".".join(part for part in (owner, path) if part)
        if full in self._paths.values():
            self.assumed.modes[full] = training
        return False

    def keep_setting(self, name: str, args: tuple, answer: Any) -> bool:
        """As `keep_mode`, of a setting of PyTorch's."""
        self.create_node("call_function", expect_setting, (name, args, answer), {})
        return False

    def repeat(self, call: Callable[..., Any], function: Callable[..., Any], args: tuple) -> Any:
        """A graph within the program does what no mode sees."""
        return function(*args) if self.contexts is None else self.run(call, args, {})

    @property
    def contexts(self) -> RecordedContexts | None:
        """The blocks that the program has open; None within a call, whose own they are."""
        inside = self.local.call is not None or self.ended or self.in_functorch()
        return None if inside else self._contexts

    # Events

    def place(self) -> Place | None:
        """The line of the program that runs."""
        frame = program_frame(2)
        return None if frame is None else (frame.f_code.co_filename, frame.f_lineno, _name(frame))

    def create_node(self, kind: str, target: Any, args: tuple, kwargs: dict) -> Value:
        """Note a call that is made by other means."""
        call = Call(target, args, kwargs, self.local.module, self.place())
        call.result = Value()
        self.events.append(call)
        return call.result

    def create_proxy(self, kind: str, target: Any, args: tuple, kwargs: dict) -> Any:
        """Note a call, and make it."""
        return self.run(target, args, kwargs)

    @unwatched
    def called(self, func: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """The program calls a function of PyTorch."""
        if self.local.call is not None or self.ended or _in_functorch() is not None:
            return call_watched(func, *args, **kwargs)
        if func is torch_c.set_grad_enabled:
            if not self.local.is_main:
                self.refuse("a thread beside the program's changes the grad mode")
            return self._contexts.set_grad(*args)
        name = getattr(func, "__name__", "")
        if name == "__get__":
            attribute = func.__self__.__name__  # pyright: ignore[reportFunctionMemberAccess]
            return self.run(func, args, kwargs, getattr, (args[0], attribute))
        if name == "__set__":
            attribute = func.__self__.__name__  # pyright: ignore[reportFunctionMemberAccess]
            return self.run(func, args, kwargs, setattr, (args[0], attribute, args[1]))
        if name == "__deepcopy__":
            return self.run(func, args, kwargs, _copied, args[:1])
        if name == "__iter__" and args[0].dim():
            return iter(self.run(torch.Tensor.unbind, args[:1], {}))
        return self.run(func, args, kwargs)

    def run(
        self,
        func: Callable[..., Any],
        args: tuple,
        kwargs: dict[str, Any],
        target: Any = None,
        given: tuple | None = None,
    ) -> Any:
        """Call a function for the program, and note what it was given and what it gave.

        Args:
            target, given: what a graph calls, and with what; by default the same.
        """
        local = self.local
        lower = self.arguments
        local.is_dynamic = False
        with torch_c.DisableTorchFunction():
            lowered = lower.tuple_of(args if given is None else given)
            named = lower.dict_of(kwargs) if kwargs else {}
        is_dynamic = local.is_dynamic
        if local.objects:
            lower.refuse_hidden(local.taken())
        call = Call(target or func, lowered, named, local.module, self.place())
        local.call = call
        try:
            result = call_watched(func, *args, **kwargs)
        except Exception as error:
            self._caught.append((call, error))
            raise
        finally:
            local.call = None
        with torch_c.DisableTorchFunction():
            self._ran(call, args, result, is_dynamic)
        if self.keeper.sees_functions:
            path = call.module.path if call.module is not None else ""
            return self._kept(f"{path}:{call.name}", result)
        return result

    def _kept(self, name: str, result: Any) -> Any:
        """What the program is given in the place of a result, which may be kept."""
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
            local.call = Call(keeper.keep, (), {}, local.module, None)  # none of the program's
            try:
                with torch_c.DisableTorchFunction():
                    keeper.keep(name, result)
            finally:
                local.call = None
        return result

    def operator(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """An operator runs outside of any call of the program."""
        with torch_c.DisableTorchFunction():  # what is asked of tensors here is no call either
            return func(*args, **kwargs) if self.ended else self._operator(func, args, kwargs)

    def _operator(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if func is _LIFTED and self.values.of(args[0]) is None:
            result = func(*args, **kwargs)
            self.arguments.made_of_data(result)
            return result
        local, lower = self.local, self.arguments
        local.is_dynamic = False
        lowered, named = lower.tuple_of(args), lower.dict_of(kwargs)
        call = Call(func, lowered, named, local.module, self.place())
        is_dynamic = local.is_dynamic
        tell(call, func, args)
        local.call = call
        try:
            result = func(*args, **kwargs)
        finally:
            local.call = None
        call.what = "operator"
        self._ran(call, args, result, is_dynamic)
        return result

    def note_made(self, tensor: torch.Tensor, constant: torch.Tensor) -> None:
        """The program has made a tensor without a call that a mode sees, from what is no tensor."""
        call = Call(fresh, (constant,), {}, self.local.module, self.place())
        call.result = self.values.add(tensor)
        self.events.append(call)

    def in_functorch(self) -> bool:
        """Whether the program is within `torch.func.vmap`, `grad` or a relative."""
        return _in_functorch() is not None

    def _ran(self, call: Call, args: tuple, result: Any, is_dynamic: bool) -> None:
        kind = type(result)
        dynamic = is_dynamic or call.has_dynamic_shape
        if kind is torch.Tensor or isinstance(result, torch.Tensor):
            call.result = self.values.of(result) or self.values.add(result, dynamic)
            self.events.append(call)
            return
        question = call.args[1] if call.target is getattr else call.name
        if result is None and call.target is not getattr:
            self.events.append(call)
            return
        if holds_tensors(result):
            call.result = self.arguments.defined(result, dynamic)
            self.events.append(call)
            if not hasattr(kind, "n_sequence_fields"):  # its length may depend on a shape
                self.asked.add("shape")
                call.is_counted = dynamic
            return
        self._answered(call, question, args, result, is_dynamic)

    def _answered(
        self, call: Call, question: str, args: tuple, answer: Any, is_dynamic: bool
    ) -> None:
        """The program was told something that is no tensor."""
        if question in escapes.FREE:
            return
        if question in escapes.ADDRESSES:
            self.refuse(f"{question} gives an address, another one in each run", call)
            return
        if call.reads_values or question in HOST:
            self._escaped(call, question, args, answer)
            return
        try:
            answer_of(question, answer)
        except NotImplementedError:
            call.result = self.values.add_object(answer)
            self.events.append(call)
            return
        aspect = ASPECTS.get(question)
        if aspect is None or question in AUTOGRAD or is_dynamic:
            self._guard(call, answer)
        else:
            self.asked.update((aspect, "dtype") if question == "nbytes" else (aspect,))

    def _escaped(self, call: Call, question: str, args: tuple, answer: Any) -> None:
        self.escapes.append(Escape(question, answer, call.origin()))
        if self._strict:
            raise SymbolicTraceError(
                f"{call.origin()}: {question} reads the value {spoken(answer)} into Python.\n"
                "Keep it a tensor, or record without strict=True, which makes a guard of it."
            )
        if question in escapes.SHARING:
            self.arguments.shared_with_python(args[0], call)
        self._guard(call, answer)

    def _guard(self, call: Call, answer: Any) -> None:
        name = str(call.args[1]) if call.target is getattr else call.name
        try:
            call.reads = (answer_of(name, answer),)
        except NotImplementedError:
            self.refuse(f"{name} gives a {type(answer).__name__}, which cannot be compared", call)
            return
        call.what = name
        self.events.append(call)

    def refuse(self, why: str, call: Call | None = None) -> None:
        """Note why a graph of this run would be wrong."""
        self.refuse_at(self.place() if call is None else call.place, why)

    def refuse_at(self, place: Place | None, why: str) -> None:
        """As `refuse`, of a line."""
        where = f"{place[0]}:{place[1]} in {place[2]}: " if place is not None else ""
        self.problems.append(f"{where}{why}")

    # Modules

    @unwatched
    def call(
        self, original: Callable[..., Any], module: torch.nn.Module, args: tuple, kwargs: dict
    ) -> Any:
        """The program calls a module."""
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
        self.events.append(End(call))
        return self._kept(path, result)

    def end(self) -> None:
        """The program has returned: calls that raised were caught by it."""
        for call, error in self._caught:
            what = f"{call.name} raised {type(error).__name__}, which the program caught"
            self.refuse(what, call)


class Above(TorchFunctionMode):
    """Hands each call of PyTorch in a thread to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        return self._recorder.called(func, args, kwargs or {})


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A deep copy of a leaf tensor, by itself."""
    return tensor.__deepcopy__({})


def _name(frame: Any) -> str:
    return frame.f_code.co_name
