"""Finds the user's own line in the Python stack."""

import os
import sys
from dataclasses import dataclass
from types import FrameType

import jax
import torch

_LIBRARIES = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (os.path.dirname(__file__), torch.__file__, jax.__file__, os.__file__)
)
_SITE = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_WRAPPERS = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(os.path.abspath(jax.__file__)) + os.sep,
    *(
        _TORCH + name
        for name in (
            "_classes.py",
            "_compile.py",
            "_dynamo" + os.sep,
            "_jit_internal.py",
            "_library" + os.sep,
            "_ops.py",
            "_prims_common" + os.sep,
            "_tensor.py",
            "_tensor_str.py",
            "functional.py",
            "library.py",
            "overrides.py",
            "utils" + os.sep + "_python_dispatch.py",
        )
    ),
)


@dataclass(frozen=True)
class Origin:
    """A line of the user's program: file, line number, function and the text of the line."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def is_library(filename: str) -> bool:
    """Returns True if a file belongs to calque, torch, jax,
    the standard library or an installed package.
    """
    return (
        filename.startswith(_LIBRARIES)
        or filename.startswith("<frozen")
        or any(part in filename for part in _SITE)
    )


def is_standard(filename: str) -> bool:
    """Returns True if a file belongs to Python's standard library."""
    return filename.startswith(_STANDARD) and not any(part in filename for part in _SITE)


def is_librarys(frame: FrameType) -> bool:
    """Returns True if a frame runs code of a library, or code generated for calque's classes.

    What `dataclasses` makes has no file of its own.
    """
    file = frame.f_code.co_filename
    made = file.startswith("<") and frame.f_globals.get("__name__", "").startswith("calque.")
    return made or is_library(file)


def asking_frame() -> FrameType:
    """Returns the innermost frame outside calque and PyTorch's operator wrappers."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_WRAPPERS):
        frame = frame.f_back
    return frame


def raising_file(error: BaseException) -> str:
    """Returns the file of the traceback's frame that `asking_frame` would return."""
    found, step = "", error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if not file.startswith(_WRAPPERS):
            found = file
        step = step.tb_next
    return found


def is_packages(frame: FrameType | None) -> bool:
    """Returns True if the innermost frame outside PyTorch belongs to another installed package."""
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return frame is not None and is_library(frame.f_code.co_filename)


def user_frame() -> FrameType | None:
    """Returns the innermost frame that belongs to no library; None if every frame does."""
    frame = sys._getframe(1)
    while frame is not None and is_librarys(frame):
        frame = frame.f_back
    return frame


def user_origin() -> Origin | None:
    """Returns the user's line that called the running operation; None if there is none."""
    frame = user_frame()
    if frame is None:
        return None
    return Origin(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
