"""Where each node of a graph comes from, kept as data in `node.meta["origin"]`.

A frame is the user's unless it belongs to PyTorch, calque or the standard library; models in
installed packages count as programs.
"""

import functools
import linecache
import os
import re
import sys
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.fx.node import Node

from calque.errors.installed import is_installed

_ENGINES = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (os.path.dirname(os.path.dirname(__file__)), torch.__file__)
)
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')


class NodeOrigin(NamedTuple):
    """The line of the program that made a node.

    Attributes:
        file, line, function: the user's innermost frame.
        module: the qualified name of the module whose forward ran; "" at the root.
        call: how many times that module had been called before, in this trace.

    >>> NodeOrigin("model.py", 12, "forward", "encoder.0", 1)
    model.py:12 in forward (encoder.0, call 1)
    """

    file: str
    line: int
    function: str
    module: str = ""
    call: int = 0

    @property
    def text(self) -> str:
        """The source of the line, without its indentation; "" if it cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __repr__(self) -> str:
        place = f"{self.file}:{self.line} in {self.function}"
        if not self.module:
            return place
        call = f", call {self.call}" if self.call else ""
        return f"{place} ({self.module}{call})"

    __str__ = __repr__


@functools.lru_cache(maxsize=4096)
def is_engine(filename: str) -> bool:
    """Returns True if a file belongs to PyTorch, calque or the standard library, not to the
    program.
    """
    if filename.startswith((*_ENGINES, "<frozen", "<eval_with_key>")):
        return True
    return filename.startswith(_STANDARD) and not is_installed(filename)


def program_frame(depth: int = 1) -> FrameType | None:
    """Returns the innermost frame of the traced program,
    `depth` frames above the caller's or further.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and is_engine(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def origin_here(module: str, call: int) -> NodeOrigin | None:
    """Returns the origin of a node that is created now; None if no frame is the program's."""
    frame = program_frame(2)
    if frame is None:
        return None
    code = frame.f_code
    return NodeOrigin(code.co_filename, frame.f_lineno, code.co_name, module, call)


def origin_of_code(fields: dict[str, Any]) -> NodeOrigin:
    """Returns the origin of a graph's inputs and output: where the function begins.

    Args:
        fields: `co_filename`, `co_firstlineno` and `co_name` of its code.
    """
    return NodeOrigin(fields["co_filename"], fields["co_firstlineno"], fields["co_name"])


def origin_of(node: Node) -> NodeOrigin | None:
    """Returns a node's origin, also after a transform that keeps only torch.fx's metadata.

    >>> node = torch.fx.Graph().placeholder("x")
    >>> node.stack_trace = 'File "model.py", line 12, in forward'
    >>> origin_of(node)
    model.py:12 in forward
    """
    origin = node.meta.get("origin")
    if origin is not None or not node.stack_trace:
        return origin
    frames = _FRAME.findall(node.stack_trace)
    if not frames:
        return None
    own = [frame for frame in frames if not is_engine(frame[0])]
    file, line, function = (own or frames)[-1]  # if all are PyTorch's, the innermost
    stack = list(node.meta.get("nn_module_stack", {}).items())
    key, module = (stack[-1][0], stack[-1][1][0]) if stack else ("", "")
    call = key.rpartition("@")[2]
    return NodeOrigin(file, int(line), function, module, int(call) if call.isdigit() else 0)
