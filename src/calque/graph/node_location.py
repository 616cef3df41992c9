"""The user's line that a node of a graph comes from, and errors that name it."""

import contextlib
import re

import torch
from torch import fx

from calque.errors import Origin
from calque.errors.frames import is_library
from calque.upstream.torch_internals import assert_async

_ASSERTIONS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)
_PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def origin_of(node: fx.Node) -> Origin | None:
    """Returns the user's line that a node comes from; None if it is unknown."""
    places = _PLACE.findall(node.stack_trace or "")
    places = [place for place in places if not is_library(place[0])] or places
    if not places:
        return None
    file, line, function = places[-1]
    return Origin(file, int(line), function)


def line_of(node: fx.Node) -> str:
    """Returns `origin_of` as text; empty if it is unknown."""
    return str(origin_of(node) or "")


def is_own_assertion(node: fx.Node) -> bool:
    """Returns True for an `assert` on a tensor in the user's code, as Dynamo captures it.

    Others come from operators, such as `one_hot`, or from code in packages.
    """
    if node.target not in _ASSERTIONS:
        return False
    calls = node.meta.get("source_fn_stack")
    places = _PLACE.findall(node.stack_trace or "")
    return bool(calls and calls[-1][1] is assert_async and places and not is_library(places[-1][0]))


_LOCATED = "_calque_located"
_LEADING = re.compile(r"\S[^\n]*?:\d+ in [^\s:]+: ")
"""The place at the beginning of a message, as `Origin` spells it."""


def located(error: Exception, node: fx.Node) -> Exception:
    """Returns an error of a node with the user's line in front, once.

    If the error names the line that called the graph, the node's replaces it.
    """
    line = line_of(node)
    if getattr(error, _LOCATED, False) or not line:
        return error
    said = str(error)
    leading = _LEADING.match(said)
    text = f"{line}: {said[leading.end() :] if leading else said}"
    try:
        found = type(error)(text)
    except Exception:
        error.add_note(text)
        found = error
    with contextlib.suppress(AttributeError):
        setattr(found, _LOCATED, True)
    return found.with_traceback(error.__traceback__)
