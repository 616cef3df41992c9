"""Objects in the result of a traced function that are not registered containers.

An example is a cache of keys and values: an object of a user's or library's class, created in the
trace, that holds tensors. Its tensors become results of the program, and each call creates the
object again, and what the function has put into it, with the tensors of that call.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from calque.jitting.owned_objects import ELSEWHERE, owned, tensors_of
from calque.state.created_values import ValuesTemplate
from calque.state.plain import closes_over_new, tells_its_end
from calque.state.values import ATOMIC

_FILLED = (bytearray,)
"""Classes of values that hold no objects, but may change."""
_HOLDS_OBJECTS = 1 << 14
"""The flag of classes whose objects may refer to others (`Py_TPFLAGS_HAVE_GC`)."""

Making = Callable[[list[Any], Mapping[int, Any], Mapping[int, Any], Callable[[Any], Any]], Any]


class ObjectResults:
    """The objects among the leaves of a result; see `opened`.

    Args:
        template: creates the objects.
        places: their positions among the leaves, in order.
        count: the number of values that they hold, which are the last leaves of the opened result.
    """

    def __init__(self, template: ValuesTemplate, places: list[int], count: int) -> None:
        self._template = template
        self._places = places
        self._count = count

    def closed(self, results: list[Any]) -> list[Any]:
        """Returns the leaves of a call's result, given those of the opened result."""
        first = len(results) - self._count
        leaves = results[:first]
        made = self._template.build(lambda index: results[first + index])
        for place, value in zip(self._places, made):
            leaves.insert(place, value)
        return leaves


class _Places(Mapping[int, Any]):
    """Describes values of a call by their numbers, which they get when they are first asked for."""

    def __init__(self, values: dict[int, Any], add: Callable[[Any], int]) -> None:
        self._values = values
        self._add = add

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __getitem__(self, key: int) -> int:
        return self._add(self._values[key])

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def opened(
    leaves: list[Any],
    given: Mapping[int, Any] | set[int],
    known: Mapping[int, Any],
    is_fresh: Callable[[Any], bool],
    making: Making,
) -> ObjectResults | None:
    """Replace the objects in a list of leaves with what they hold; returns None if there are no
    objects.

    An object is opened if the function has created it, and only the list refers to it. Other
    objects keep their identity, and are not copied.

    Args:
        leaves: the list.
        given: the ids of the call's containers and of objects that the function also stores, which
            are treated like tensors.
        known: the objects that existed before, by id.
        is_fresh: returns True for a tensor that was created in the trace.
        making: returns a template of values, given the values, the objects that are the same in
            each call, those of the call, and a function that describes a tensor.
    """
    found = [i for i, leaf in enumerate(leaves) if id(leaf) not in given and _is_object(leaf)]
    found = [i for i in found if id(leaves[i]) not in known]
    if not found:
        return None
    mine, others = owned(leaves, [leaves[i] for i in found], {*given, *known})
    found = [i for i in found if id(leaves[i]) in mine]
    if not found:
        return None
    held: list[Any] = []

    def add(value: Any) -> int:
        held.append(value)
        return len(held) - 1

    places = _Places({key: value for key, value in others.items() if key in given}, add)
    same = {key: value for key, value in others.items() if key not in given}
    for key in [key for key in same if key not in known]:
        if any(map(is_fresh, tensors_of(same[key], {*given, *known}))):
            del same[key]  # what the trace has computed differs in each call
    template = making([leaves[i] for i in found], same, places, add)
    for index in reversed(found):
        del leaves[index]
    leaves += held
    return ObjectResults(template, found, len(held))


def _is_object(value: object) -> bool:
    kind = type(value)
    if kind in ATOMIC or issubclass(kind, ELSEWHERE) or not _may_change(kind):
        return False
    return not (isinstance(value, tuple) and not value) and not tells_its_end(value)


def _may_change(kind: type) -> bool:
    return bool(kind.__flags__ & _HOLDS_OBJECTS) or issubclass(kind, _FILLED)


def ending(leaves: Iterable[Any], known: Mapping[int, Any]) -> list[str]:
    """Returns why a function is traced at each call that returns objects which tell their end, or
    functions with variables of their own.
    """
    found = [one for one in leaves if id(one) not in known and hasattr(one, "__dict__")]
    reasons = [
        f"the function {one.__qualname__} is returned, which closes over an object made in the call"
        for one in found
        if closes_over_new(one, known)
    ]
    return reasons + [
        f"a {type(one).__name__} is returned, whose end is noticed by code"
        for one in found
        if not isinstance(one, ELSEWHERE) and tells_its_end(one)
    ]
