"""The tree of calque's exceptions.

    CalqueError
    ├── TraceError            (also a RuntimeError)         a program that cannot be traced faithfully
    └── UnsupportedOpError    (also a NotImplementedError)  an operator nothing can serve

What PyTorch itself would raise on another device (a shape mismatch, an index out of range) is raised
as PyTorch's own class instead.
"""


class CalqueError(Exception):
    """The base of every exception that calque adds to PyTorch's own."""


class TraceError(CalqueError, RuntimeError):
    """A program did something while it was traced that one XLA program cannot reproduce."""


class UnsupportedOpError(CalqueError, NotImplementedError):
    """An operator has no rule, no decomposition and no CPU kernel that can serve it."""
