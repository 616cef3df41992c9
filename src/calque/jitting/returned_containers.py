"""The containers in a result that are the same object, also within objects, or existed before the
call.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from calque.errors import TraceError
from calque.jitting.owned_objects import held_by, is_made_anew, is_made_key, is_whole
from calque.jitting.result_descriptions import Describer
from calque.program import trees
from calque.program.results import (
    ArgumentContainer,
    Constant,
    Description,
    KeptContainer,
    Made,
    Outputs,
)
from calque.state.created_classes import is_created_again
from calque.state.plain import has_attributes
from calque.upstream.torch_internals import pytree


def _is_container(value: object) -> bool:
    if type(value) is torch.Size or (type(value) is tuple and not value):
        return False
    if has_attributes(value):
        return False
    return isinstance(value, tuple) or type(value) in pytree.SUPPORTED_NODES


def _holds(leaf: Any) -> bool:
    """Returns True if a leaf of a result may hold objects."""
    if isinstance(leaf, torch.Tensor):
        return bool(vars(leaf))
    return not is_whole(leaf) or is_made_anew(leaf)


class RepeatedContainer(Made):
    """A container that occurs in a result several times, or in an object of it.

    Args:
        leaves: the descriptions of its leaves.
        rebuild: builds a container from the leaves.
    """

    shared = True

    def __init__(self, leaves: list[Description], rebuild: Callable[[list[Any]], Any]) -> None:
        self._leaves = leaves
        self._rebuild = rebuild

    def make(self, outputs: Outputs) -> Any:
        return self._rebuild([leaf.build(outputs) for leaf in self._leaves])


class Containers:
    """The containers in one result that are treated as leaves.

    Args:
        result: the result.
        outside: the ids of the containers that existed before the call.
        given: the paths to the containers among the call's arguments, by id.
        kept: the ids of the containers and objects that the function also stores in the state.
        known: the ids of the objects that existed before the call.

    Attributes:
        kept: the described ones among these, and those of `keep`.
    """

    def __init__(
        self,
        result: Any,
        outside: Collection[int],
        given: Mapping[int, tuple[Any, ...]],
        kept: Collection[int] = (),
        known: Collection[int] = (),
    ) -> None:
        self._outside = outside
        self._given = given
        self.kept: list[Any] = []
        self._described: dict[int, Description] = {}
        counts: Counter[int] = Counter()
        dicts: list[dict[Any, Any]] = []
        before, anew = [known], set[int]()

        def is_known(one: object) -> bool:
            if id(one) in kept:
                return True
            if not _is_container(one):
                return has_attributes(one)
            if is_created_again(type(one), before[0]):
                anew.add(id(one))
                return True
            counts[id(one)] += 1
            if isinstance(one, dict):
                dicts.append(one)
            return id(one) in outside or id(one) in given or counts[id(one)] > 1

        leaves, _ = pytree.tree_flatten(result, is_known)
        self._kept = anew.union(kept)
        before.clear()  # PyTorch's function leaves behind a cycle that refers to the lists
        while dicts:
            one = dicts.pop()
            if any(is_made_key(key, known) for key in dict.keys(one)):
                counts[id(one)] += 1  # like one that occurs in its keys
        objects = [one for one in leaves if _holds(one) and not _is_container(one)]
        held = set(map(id, held_by(objects, {*known, *given, *kept}))) if objects else ()
        self._shared = frozenset(k for k, count in counts.items() if count > 1 or k in held)

    def keep(self, ids: Collection[int]) -> None:
        """Treat other leaves like those that the function also stores."""
        self._kept.update(ids)

    def flatten(self, tree: object) -> tuple[list[Any], Any]:
        """Returns the leaves of a result, and a function that rebuilds it."""
        return trees.flatten(tree, self.has, whole=True)

    def has(self, leaf: Any) -> bool:
        """Returns True if a leaf is a container."""
        key = id(leaf)
        return any(key in ids for ids in (self._outside, self._given, self._kept, self._shared))

    def describe(self, leaf: object, describer: Describer) -> Description:
        """Returns the description of a leaf."""
        if id(leaf) in self._given:
            return ArgumentContainer(self._given[id(leaf)])
        if id(leaf) in self._outside and not isinstance(leaf, torch.Tensor):
            return Constant(leaf)
        if id(leaf) in self._kept:
            known = self._described.get(id(leaf))
            if known is None:
                known = self._described[id(leaf)] = KeptContainer(len(self.kept))
                self.kept.append(leaf)
            return known
        if id(leaf) not in self._shared:
            return describer.describe(leaf)
        known = self._described.get(id(leaf))
        if known is None:
            if trees.contained_in_itself(leaf) is not None:
                raise TraceError(
                    f"the function returns a {type(leaf).__name__} that contains itself, and that "
                    "something else holds, such as a variable of a function that it creates.\n"
                    "Return an object that has it as an attribute."
                )
            leaves, spec = trees.flatten(
                leaf, lambda one: one is not leaf and self.has(one), whole=True
            )
            inner = [self.describe(one, describer) for one in leaves]
            known = self._described[id(leaf)] = RepeatedContainer(inner, trees.same_tree(spec))
        return known
