"""Shows graphs of calque and PyTorch as text, pictures and pages.

The entry point is `calque.show`; this package has its parts, and overlays, which are numbers to
colour nodes by.
"""

from calque.view.api import show
from calque.view.graph import (
    SourceLine,
    TensorLook,
    ViewEdge,
    ViewGraph,
    ViewGroup,
    ViewNode,
)
from calque.view.readers import read, reader
from calque.view.view import View

__all__ = [
    "SourceLine",
    "TensorLook",
    "View",
    "ViewEdge",
    "ViewGraph",
    "ViewGroup",
    "ViewNode",
    "read",
    "reader",
    "show",
]
