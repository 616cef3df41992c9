"""Generated programs that read and change what they reach, while others change it between calls.

State is a tree of dictionaries, lists, objects, slots, modules, sets and deques. A program is the
text of a function that reads some paths of it and changes some; between its calls other statements
change the tree. The jitted function must give what eager PyTorch gives, and leave the same tree.
"""

import collections
import copy
import itertools
import linecache
import warnings
from typing import Any

import hypothesis
import hypothesis.strategies as st
import torch
from torch import nn

import calque
from tests.laws.state.describe import describe, difference


class Plain:
    """An object with a dictionary."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slots:
    """An object without one."""

    __slots__ = ("p", "q")

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)


class Holder(nn.Module):
    """A module with attributes that are no tensors."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        for name, value in values.items():
            setattr(self, name, value)


_PRELUDE = '''
def weigh(v):
    """A number for any value; it reads all of it, in order."""
    if v is None:
        return 1.0
    if isinstance(v, str):
        return 2.0 + len(v)
    if isinstance(v, bool):
        return 3.0 if v else 4.0
    if isinstance(v, int):
        return 5.0 + v
    if isinstance(v, float):
        return 6.0 + v + (0.5 if str(v).startswith("-") else 0.0)
    if isinstance(v, dict):
        parts = [part for pair in v.items() for part in pair]
    elif isinstance(v, (set, frozenset)):
        parts = sorted(v, key=repr)
    elif isinstance(v, (list, tuple, collections.deque)):
        parts = list(v)
    else:
        parts = [getattr(v, name) for name in ("p", "q", "r") if hasattr(v, name)]
    total = 7.0 + len(parts)
    for part in parts:
        total = 0.75 * total + weigh(part)
    return total


def look(read):
    try:
        return weigh(read())
    except MISSING:
        return -1.0


def attempt(change):
    try:
        change()
    except MISSING:
        pass
'''

_MISSING = (KeyError, IndexError, AttributeError, TypeError, ValueError)
_leaves = st.sampled_from([0, 1, 2, True, False, 1.0, 0.5, 0.0, -0.0, None, "ab", "abc"])
_names = st.sampled_from(["p", "q", "r"])


def _inner(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    attributes = st.dictionaries(_names, children, max_size=2)
    slots = st.dictionaries(st.sampled_from(["p", "q"]), children, max_size=2)
    return st.one_of(
        st.dictionaries(_names, children, max_size=3),
        st.dictionaries(_names, children, max_size=3).map(collections.OrderedDict),
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.lists(_leaves, max_size=3).map(collections.deque),
        st.sets(st.sampled_from(["a", "b", 1, 2]), max_size=3),
        attributes.map(lambda values: Plain(**values)),
        slots.map(lambda values: Slots(**values)),
        attributes.map(lambda values: Holder(**values)),
    )


_values = st.recursive(_leaves, _inner, max_leaves=5)
_states = st.fixed_dictionaries(dict.fromkeys(("a", "b", "c"), _values))
_steps = st.sampled_from(["['p']", "['q']", "[0]", "[-1]", ".p", ".q", ".r"])


@st.composite
def _paths(draw: st.DrawFn) -> str:
    root = draw(st.sampled_from(["state['a']", "state['b']", "state['c']"]))
    return root + "".join(draw(st.lists(_steps, max_size=2)))


@st.composite
def _changes(draw: st.DrawFn) -> list[str]:
    """The lines of a statement that changes something that a path leads to."""
    path, step, leaf = draw(_paths()), draw(_steps), repr(draw(_leaves))
    target = path + step
    change = draw(
        st.sampled_from(
            [
                f"{target} = {leaf}",
                f"{target} = not {target}",
                f"{target} = ({target} + 1) % 3",
                f"{target}, {path}['q'] = {path}['q'], {target}",
                f"{path}.append({leaf}) if len({path}) < 3 else {path}.clear()",
                f"{path}.pop()",
                f"{path}.pop('p', None)",
                f"{path}.reverse()",
                f"{path}.add({leaf})",
                f"{path}.discard('a')",
                f"{path}.setdefault('r', {leaf})",
                f"{path}.update(q={leaf})",
                f"{path}['p'] = {path}.pop('p')",
                f"{path}.rotate(1)",
                f"del {target}",
                f"{target} = [{leaf}, {{'p': {leaf}}}]",
            ]
        )
    )
    return ["def change():", f"    {change}", "attempt(change)"]


def _function(name: str, body: list[str]) -> str:
    return f"def {name}(x):\n" + "".join(f"    {line}\n" for line in [*body, "return x"])


@st.composite
def _programs(draw: st.DrawFn) -> str:
    """A function `run` that is jitted, and functions `between` that are not."""
    body: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        body.append(f"x = x + look(lambda: {draw(_paths())})")
        if draw(st.booleans()):
            body += draw(_changes())
    text = _PRELUDE + "\n\n" + _function("run", body)
    for i in range(3):
        lines = draw(_changes()) if draw(st.integers(0, 3)) else ["pass"]
        text += "\n\n" + _function(f"between{i}", lines)
    return text


_numbers = itertools.count()


def _made(text: str, state: Any) -> dict[str, Any]:
    """The names of a program, with a tree of its own; its lines can be shown in errors."""
    file = f"<generated state {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    names = {"state": copy.deepcopy(state), "collections": collections, "MISSING": _MISSING}
    exec(compile(text, file, "exec"), names)
    return names


@hypothesis.settings(
    max_examples=40, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
@hypothesis.given(text=_programs(), state=_states, back=st.booleans())
def test_generated_state_is_read_and_changed_as_eagerly(text: str, state: Any, back: bool) -> None:
    eager, jitted = _made(text, state), _made(text, state)
    fast = calque.jit(jitted["run"])
    for i in (0, 1, 2, 0) if back else (0, 1, 2):
        expected = eager["run"](torch.ones(2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about traces at each call
            found = fast(torch.ones(2, device="jax"))
        assert found.tolist() == expected.tolist(), f"call {i} of\n{text}"
        said = difference(describe(jitted["state"]), describe(eager["state"]))
        assert said is None, f"after call {i}: {said}\n{text}"
        for names in (eager, jitted):
            names[f"between{i}"](None)
