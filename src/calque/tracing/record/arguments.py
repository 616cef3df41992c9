"""Arguments and results of calls as a recording keeps them: with values instead of tensors."""

from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import Any

import torch

from calque.state import ATOMIC
from calque.tracing.graph.templates import asks_when_made
from calque.tracing.record.values import RunValue
from calque.tracing.tracer.constants import is_constant

_PLAIN = frozenset((*ATOMIC, torch.Size, torch.dtype, torch.device, torch.layout)) - {slice}
_DEPTH = 3


class ArgumentValues:
    """Finds the values in arguments and results.

    Args:
        recorder: has the values, and collects what cannot be part of a graph.

    Attributes:
        outside: the tensors that existed before the run or that no recorded call created, by id.
    """

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self.outside: dict[int, tuple[torch.Tensor, Any]] = {}
        self._shared: list[tuple[torch.Tensor, torch.Tensor, int, Any]] = []

    def of(self, given: Any) -> Any:
        """Returns a recording's form of an argument or a result."""
        kind = type(given)
        if kind in _PLAIN:
            return given
        if isinstance(given, torch.Tensor):
            return self._tensor(given)
        if kind is tuple:
            return tuple([self.of(part) for part in given])
        if kind is list:
            return [self.of(part) for part in given]
        if kind is dict:
            return self.dict_of(given)
        if kind is slice:
            return slice(self.of(given.start), self.of(given.stop), self.of(given.step))
        if isinstance(given, tuple):
            if hasattr(kind, "_fields"):
                if asks_when_made(kind):
                    # The class says that it holds only tensors.
                    self._recorder.local.objects.append(given)
                return kind._make(map(self.of, given))  # type: ignore[attr-defined]
            return kind([self.of(part) for part in given])
        return self._object(given)

    def tuple_of(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Like `of`, for positional arguments."""
        return tuple([self.of(part) for part in given])

    def dict_of(self, given: dict[Any, Any]) -> dict[Any, Any]:
        """Like `of`, for keyword arguments."""
        return {key: self.of(part) for key, part in given.items()}

    def _tensor(self, tensor: torch.Tensor) -> Any:
        value = self._recorder.values.of(tensor)
        if value is not None:
            if value.is_dynamic:
                self._recorder.local.is_dynamic = True
            return value
        if id(tensor) not in self.outside:
            self.outside[id(tensor)] = tensor, self._recorder.place()
        return tensor

    def _object(self, given: Any) -> Any:
        value = self._recorder.values.of_object(given)
        if value is not None:
            return value
        if isinstance(given, FunctionType) or not is_constant(given):
            self._recorder.local.objects.append(given)
        return given

    def refuse_hidden(self, objects: list[Any]) -> None:
        """Refuse objects that are passed to a PyTorch function if they hold values of the run."""
        for given in objects:
            if self._hides(given, _DEPTH):
                kind = type(given).__name__
                self._recorder.refuse(
                    f"a {kind} that contains tensors of the run is passed to PyTorch"
                )

    def _hides(self, thing: Any, depth: int) -> bool:
        """Returns True if an object holds a tensor that is a value of the run."""
        if isinstance(thing, torch.Tensor):
            return self._recorder.values.of(thing) is not None
        if depth == 0 or type(thing) in _PLAIN or isinstance(thing, (type, torch.nn.Module)):
            return False
        inside: list[Any] = []
        if isinstance(thing, dict):
            inside += thing.values()
        elif isinstance(thing, (tuple, list, set, frozenset)):
            inside += thing
        else:
            cells = getattr(thing, "__closure__", None) or ()
            inside += [c.cell_contents for c in cells if _is_filled(c)]
            inside += getattr(thing, "__dict__", {}).values()
            inside += [getattr(thing, "__self__", None), getattr(thing, "func", None)]
            inside += getattr(thing, "args", None) or () if hasattr(thing, "func") else ()
        return any(self._hides(part, depth - 1) for part in inside)

    def defined(self, result: Any, is_dynamic: bool) -> Any:
        """Returns the values in the containers that a PyTorch function returned."""
        values = self._recorder.values
        if isinstance(result, torch.Tensor):
            return values.of(result) or values.add(result, is_dynamic)
        if isinstance(result, (tuple, list)) and type(result) is not torch.Size:
            return tuple([self.defined(part, is_dynamic) for part in result])
        if isinstance(result, dict):
            return {key: self.defined(part, is_dynamic) for key, part in result.items()}
        return None

    # Tensors that no call returned

    def made_of_data(self, tensor: torch.Tensor) -> None:
        """Record that the program creates a tensor from numbers or an array."""
        self.shared_with_python(tensor, None)
        with self._recorder.apart():
            constant = tensor.detach().clone()
        self._recorder.note_made(tensor, constant)

    def shared_with_python(self, tensor: torch.Tensor, call: Any) -> None:
        """Watch a tensor whose memory Python can write to without PyTorch."""
        place = call.place if call is not None else self._recorder.place()
        with self._recorder.apart():
            self._shared.append((tensor, tensor.detach().clone(), tensor._version, place))

    def written_by_python(self) -> list[Any]:
        """Returns the lines where Python got access to a tensor that it then wrote to."""
        found = []
        for tensor, before, version, place in self._shared:
            if tensor._version == version and not _same(tensor.detach(), before):
                found.append(place)
        return found

    def from_nowhere(
        self, created: Callable[[], Collection[int] | None], known: Mapping[int, Any]
    ) -> list[tuple[torch.Tensor, Any]]:
        """Returns the tensors that were created in the run, but by no recorded call.

        Args:
            created: returns the ids of the tensors that were created in the run; None if this is
                not known.
            known: the objects that the program was seen to have before, by id. If it is not known
                what was created, all other tensors are suspected.
        """
        if not self.outside:
            return []
        new = created()
        if new is None:
            return [entry for key, entry in self.outside.items() if key not in known]
        return [entry for key, entry in self.outside.items() if key in new]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(((a == b) | ((a != a) & (b != b))).all())


def takes_data(call: Any) -> bool:
    """Returns True if a call may return a tensor in an array's memory, to which no graph may write.

    >>> import numpy as np
    >>> from calque.tracing.record.events import RecordedCall
    >>> pair = np.ones(2), [1.0, 1.0]
    >>> calls = [RecordedCall(torch.as_tensor, (data,), {}, None, None) for data in pair]
    >>> [takes_data(call) for call in calls]
    [True, False]
    """
    named = {"as_tensor": "data", "asarray": "obj"}.get(call.name)
    if named is None or not (call.args or named in call.kwargs):
        return False
    data = call.args[0] if call.args else call.kwargs[named]
    numbers = (bool, int, float, complex, list, tuple, RunValue, torch.Tensor)
    return not isinstance(data, numbers)


def holds_tensors(result: object) -> bool:
    """Returns True if the result of a PyTorch function contains tensors."""
    if type(result) in ATOMIC:
        return False
    if isinstance(result, torch.Tensor):
        return True
    if isinstance(result, dict):
        return any(map(holds_tensors, result.values()))
    return isinstance(result, (tuple, list)) and any(map(holds_tensors, result))
