"""Warns about lines whose tensors have a new length each time, so that each is compiled.

The warning counts compilations of the same operator at the same user's line for shapes that differ
in a single length. Layers of different widths, which one line may call, differ in several lengths.
Vectors have only one length, so they count only if the user's own line computes with them.
PyTorch's optimizers and initializations do not count: they iterate over parameters, which may
differ in one length (the kernels of depthwise convolutions) but are limited in number.
"""

import os
import warnings
from collections import defaultdict
from collections.abc import Sequence

import torch

from calque.errors import ShapeWarning
from calque.errors.frames import caller_frame, user_frame

Shapes = Sequence[tuple[int, ...]]
_LENGTHS = 5  # the number at which to warn
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OF_PARAMETERS = (_TORCH + "optim" + os.sep, os.path.join(_TORCH, "nn", "init.py"))
_MOST = 10_000  # pairs of lines and operators


class _Lines:
    """The programs compiled at each line."""

    def __init__(self) -> None:
        self.lengths: dict[object, set[int]] = defaultdict(set)
        self.warned: set[tuple[str, int]] = set()


_lines = _Lines()


def note(name: str, shapes: Shapes) -> None:
    """Note that an operator is about to be compiled.

    Args:
        name: the operator's name.
        shapes: the shapes of its arrays.
    """
    frame = user_frame()
    if frame is None:
        return
    line = frame.f_code.co_filename, frame.f_lineno
    if line in _lines.warned:
        return
    if len(_lines.lengths) > _MOST:
        _lines.lengths.clear()
    caller = caller_frame()
    if caller.f_code.co_filename.startswith(_OF_PARAMETERS):
        return
    is_direct = caller is frame
    for length in {n for shape in shapes for n in shape}:
        others = tuple(tuple([None if n == length else n for n in shape]) for shape in shapes)
        if not is_direct and all(n is None for shape in others for n in shape):
            continue
        found = _lines.lengths[line, name, others]
        found.add(length)
        if len(found) == _LENGTHS:
            _lines.warned.add(line)
            _warn(*line, name, sorted(found))
            return


def _warn(file: str, line: int, name: str, lengths: list[int]) -> None:
    met = ", ".join(map(str, lengths))
    message = (
        f"{name} was compiled for {_LENGTHS} lengths at this line ({met}): each new length "
        "compiles every operator that uses it.\nPad to one length, or to a few (the next power "
        "of two); to generate text, use a cache of fixed length (transformers: "
        'cache_implementation="static"); torch.compile takes options={"buckets": "pow2"}.'
    )
    warnings.warn_explicit(message, ShapeWarning, file, line)
