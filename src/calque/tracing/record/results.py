"""Handles the results of a recorded program's calls as values, guards or refusals."""

import sys
from typing import TYPE_CHECKING, Any

import torch

from calque.tracing.abstract.abstract_values import RESHAPING
from calque.tracing.abstract.tensor_properties import ASPECTS
from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph.value_guards import AUTOGRAD, HOST, answer_of, described
from calque.tracing.record import escapes
from calque.tracing.record.arguments import holds_tensors
from calque.tracing.record.escapes import Escape
from calque.tracing.record.events import RecordedCall
from calque.tracing.record.values import RunValue, values_in
from calque.upstream import torch_c
from calque.upstream.torch_internals import tree_leaves

if TYPE_CHECKING:
    from calque.tracing.record.recorder import Recorder


class KeptResults:
    """Decides what the recording keeps of each result.

    A tensor becomes a value. A property that the program reads becomes a guard, unless the inputs'
    shapes and dtypes determine it.

    Args:
        recorder: the recording.
        strict: refuse calls that read values of tensors.
    """

    def __init__(self, recorder: "Recorder", strict: bool) -> None:
        self._recorder = recorder
        self._strict = strict

    def guard_shapes(self, call: RecordedCall) -> None:
        """Guard the shapes of an operator's arguments, because the code that called it may have
        read them.

        Modes do not intercept reads of properties by C++ and by PyTorch's own Python code.
        """
        values = values_in((call.args, call.kwargs))
        if values:
            self._recorder.asked.update(("shape", "dtype"))
        for value in values:
            self._guard_shape(value)

    def guard_shapes_in_functorch(self, args: tuple[Any, ...]) -> None:
        """Like `guard_shapes`, for a function run by a transform such as `torch.func.vmap`."""
        with torch_c.DisableTorchFunction():
            found = [self._recorder.values.of(arg) for arg in args if isinstance(arg, torch.Tensor)]
            for value in filter(None, found):
                self._guard_shape(value)

    def _guard_shape(self, value: RunValue) -> None:
        if value.is_dynamic and value.looks is not None:
            call = RecordedCall(
                getattr, (value, "shape"), {}, self._recorder.local.module, self._recorder.place()
            )
            self._guard(call, torch.Size(value.looks.shape))

    def add(self, call: RecordedCall, args: tuple[Any, ...], result: Any, is_dynamic: bool) -> None:
        """Keep the result of a call.

        Args:
            call: the call.
            args: its arguments, as the program passed them.
            result: what it returned.
            is_dynamic: whether an argument's shape depends on the inputs' values.
        """
        recorder, kind = self._recorder, type(result)
        dynamic = is_dynamic or call.has_dynamic_shape or _splits_by_values(call)
        if dynamic:
            for tensor in _may_be_reshaped(call, args, result):
                recorder.values.reshaped(tensor)
        if kind is torch.Tensor or isinstance(result, torch.Tensor):
            call.result = recorder.values.of(result) or recorder.values.add(result, dynamic)
            recorder.events.append(call)
            return
        question = call.args[1] if call.target is getattr else call.name
        if result is None and call.target is not getattr:
            recorder.events.append(call)
            return
        if holds_tensors(result):
            call.result = recorder.arguments.defined(result, dynamic)
            recorder.events.append(call)
            # The length of other tuples may depend on a shape.
            if not hasattr(kind, "n_sequence_fields"):
                recorder.asked.add("shape")
                call.is_counted = dynamic
                if dynamic:
                    self._note(call, f"the number of parts of {call.name}", len(result))
            return
        self._answered(call, question, args, result, is_dynamic)

    def _answered(
        self,
        call: RecordedCall,
        question: str,
        args: tuple[Any, ...],
        answer: object,
        is_dynamic: bool,
    ) -> None:
        """Keep the result of a call that returned something other than tensors."""
        if question in escapes.FREE:
            return
        if question in escapes.ADDRESSES:
            self._recorder.refuse(f"{question} returns an address, which differs in each run", call)
            return
        if call.reads_values or question in HOST:
            self._escaped(call, question, args, answer)
            return
        try:
            answer_of(question, answer)
        except NotImplementedError:
            call.result = self._recorder.values.add_object(answer)
            self._recorder.events.append(call)
            return
        aspect = ASPECTS.get(question)
        if is_dynamic and (aspect == "shape" or question == "__len__"):
            self._escaped(call, question, args, answer)
        elif aspect is None or question in AUTOGRAD or is_dynamic:
            self._guard(call, answer)
        else:
            self._asked(call, (aspect, "dtype") if question == "nbytes" else (aspect,))

    def _asked(self, call: RecordedCall, aspects: tuple[str, ...]) -> None:
        """Note a question whose answer follows from the inputs, parameters and constants."""
        self._recorder.asked.update(aspects)
        for subject in call.args[:1]:
            if type(subject) is RunValue:
                subject.asked += aspects
            elif isinstance(subject, torch.Tensor):
                self._recorder.asked_of_members.append((subject, aspects, call.module))

    def _escaped(
        self, call: RecordedCall, question: str, args: tuple[Any, ...], answer: object
    ) -> None:
        if escapes.is_lost(question, sys._getframe(1)):
            return
        self._recorder.numbers.read(call, self._note(call, question, answer))
        if question in escapes.SHARING:
            self._recorder.arguments.shared_with_python(args[0], call)
        self._guard(call, answer)

    def _note(self, call: RecordedCall, question: str, answer: object) -> Escape:
        """Record that a value is read into Python.

        Raises:
            TraceError: the recording is strict.
        """
        escape = Escape(question, answer, call.origin())
        self._recorder.escapes.append(escape)
        if self._strict:
            self._recorder.refusal = SymbolicTraceError(
                f"{call.origin()}: {question} reads the value {described(answer)} into Python.\n"
                "Keep it a tensor, or record without strict=True, so that the value becomes a "
                "guard."
            )
            raise self._recorder.refusal
        return escape

    def _guard(self, call: RecordedCall, answer: object) -> None:
        name = str(call.args[1]) if call.target is getattr else call.name
        try:
            call.reads = (answer_of(name, answer),)
        except NotImplementedError:
            self._recorder.refuse(
                f"{name} returns a {type(answer).__name__}, which cannot be compared", call
            )
            return
        call.what = name
        self._recorder.events.append(call)


def _may_be_reshaped(
    call: RecordedCall, args: tuple[Any, ...], result: object
) -> list[torch.Tensor]:
    """Returns the tensors that a call has written to and whose shape it may have changed."""
    if call.target is setattr:
        return [args[0]] if call.args[1] == "data" else []
    if "out" in call.kwargs or call.name in RESHAPING:
        return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return []


def _splits_by_values(call: RecordedCall) -> bool:
    """Returns True for `tensor_split` with a tensor of indices, which C++ reads unseen."""
    given = (*call.args[1:2], *call.kwargs.values())
    return call.name == "tensor_split" and any(
        isinstance(v, RunValue | torch.Tensor) for v in given
    )
