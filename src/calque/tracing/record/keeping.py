"""Keeps or replaces values of a run, as requested by `keep` and `edits`.

A pattern matches calls: `"layers.*.attn"` matches calls of modules, by their paths, and
`"layers.*.attn:softmax"` calls of a PyTorch function in such a module. `*` and `?` have the meaning
of `fnmatch`.
"""

import difflib
import fnmatch
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from calque.upstream.torch_internals import pytree, tree_leaves

Edit = Callable[[Any], Any]


class Edited:
    """Replaces a value with another one of the same shapes and dtypes.

    Args:
        edit: takes the value and returns its replacement, or None to leave it.
        name: the name of the value, for messages.
    """

    def __init__(self, edit: Edit, name: str) -> None:
        self._edit, self._name = edit, name

    def __call__(self, value: Any) -> Any:
        """Returns the replacement of `value`.

        Raises:
            ValueError: it has different shapes, dtypes or containers.
        """
        made = self._edit(value)
        if made is None:
            return value
        if _looks(made) != _looks(value):
            raise ValueError(
                f"the edit of {self._name} returned {_described(made)} instead of "
                f"{_described(value)}"
            )
        return made


def edited(edit: Edited, value: object) -> Any:
    """Replaces a value, as a node of a graph."""
    return edit(value)


def _looks(value: object) -> Any:
    leaves, structure = pytree.tree_flatten(value)
    tensors = [(tuple(t.shape), t.dtype) if _is_tensor(t) else type(t) for t in leaves]
    return tensors, structure


def _described(value: object) -> str:
    leaves = tree_leaves(value)
    named = [f"{str(t.dtype)[6:]}{list(t.shape)}" for t in leaves if _is_tensor(t)]
    return ", ".join(named) or repr(value)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


class Gradient:
    """The gradient of a tensor of the run, as computed so far."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._sum: torch.Tensor | None = None
        self._leaf = tensor if tensor.is_leaf else None
        if tensor.requires_grad and self._leaf is None:
            tensor.register_hook(self._add)  # unaffected by later writes to the tensor

    def _add(self, gradient: torch.Tensor) -> None:
        known = self._sum
        self._sum = gradient.detach().clone() if known is None else known + gradient.detach()

    @property
    def now(self) -> torch.Tensor | None:
        """The gradients that `backward()` has computed so far."""
        return self._leaf.grad if self._leaf is not None else self._sum


class Keeper:
    """Keeps and edits the results of calls that match patterns.

    Args:
        keep: patterns of the calls whose results are kept.
        edits: functions that replace results, by pattern.

    Attributes:
        kept: results by the names of calls, one for each call; the tensors are copies.
        gradients: like `kept`, with a `Gradient` instead of each tensor.
        sees_functions: whether a pattern matches functions.
    """

    def __init__(self, keep: Sequence[str], edits: Mapping[str, Edit]) -> None:
        self._keep, self._edits = tuple(keep), dict(edits)
        for pattern in (*self._keep, *self._edits):
            if not isinstance(pattern, str):
                raise TypeError(f"a pattern must be a path such as 'layers.*', not {pattern!r}")
        for pattern, edit in self._edits.items():
            if not callable(edit):
                raise TypeError(
                    f"the edit of {pattern} must be a function, not {type(edit).__name__}"
                )
        self.patterns: tuple[str, ...] = (*self._keep, *self._edits)
        self.sees_functions: bool = any(":" in pattern for pattern in self.patterns)
        self.kept: dict[str, list[Any]] = {}
        self.gradients: dict[str, list[Any]] = {}
        self._seen: dict[str, None] = {}

    def edits_of(self, name: str) -> list[Edited]:
        """Returns the edits for results of calls with this name, in order. Call it once for each
        call.
        """
        self._seen[name] = None
        edits = self._edits.items()
        return [Edited(edit, name) for pattern, edit in edits if matches(name, pattern)]

    def is_edited(self, name: str) -> bool:
        """Returns True if results of calls with this name are kept or edited."""
        return any(matches(name, pattern) for pattern in self._edits)

    def wants(self, name: str) -> bool:
        """Returns True if results of calls with this name are kept."""
        return any(matches(name, pattern) for pattern in self._keep)

    def keep(self, name: str, result: Any) -> None:
        """Keep a copy of a result."""
        map_tensors = functools.partial(pytree.tree_map_only, torch.Tensor)
        self.gradients.setdefault(name, []).append(map_tensors(Gradient, result))
        self.kept.setdefault(name, []).append(map_tensors(torch.clone, result))

    def check_paths(self, paths: Iterable[str]) -> None:
        """Raise for a pattern that matches no module path of the program.

        Raises:
            ValueError: names the nearest paths.
        """
        known = list(paths)
        for pattern in self.patterns:
            if not any(matches(path, pattern.partition(":")[0]) for path in known):
                raise ValueError(_unmatched(pattern, known, "module of the program"))

    def check_seen(self) -> None:
        """Raise for a pattern that matched no call of the run.

        Raises:
            ValueError: names the nearest calls.
        """
        for pattern in self.patterns:
            if not any(matches(name, pattern) for name in self._seen):
                raise ValueError(_unmatched(pattern, list(self._seen), "call of the run"))


def matches(name: str, pattern: str) -> bool:
    """Returns True if a pattern names a call.

    >>> matches("layers.0.attn", "layers.*.attn"), matches("layers.0.attn:softmax", "layers.*.attn")
    (True, False)
    """
    path, _, function = name.partition(":")
    wanted, _, wanted_function = pattern.partition(":")
    of_function = fnmatch.fnmatchcase(function, wanted_function)
    return (":" in name) == (":" in pattern) and fnmatch.fnmatchcase(path, wanted) and of_function


def _unmatched(pattern: str, names: Sequence[str], what: str) -> str:
    near = difflib.get_close_matches(pattern, [n for n in names if n], 5, 0.4)
    if not any(names):
        return f"{pattern!r}: paths name parts of a recorded module, but this is a function"
    listed = ", ".join(near or [name for name in names if name][:5])
    return f"{pattern!r}: no {what} matches this.\nThe closest are {listed}."
