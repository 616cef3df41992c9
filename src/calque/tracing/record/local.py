"""A recorder's state for the thread that runs."""

import threading
from typing import Any

from calque.tracing.record.events import Call, ModuleCall


class Local(threading.local):
    """A recorder's state for each thread.

    Attributes:
        call: the call of PyTorch that runs.
        module: the call of a module that runs.
        is_main: whether the thread is the one that records.
        is_entered: whether the program runs in it; autograd's own threads have our modes as well.
        is_dynamic: whether a value was met, among the last arguments, of a shape that depends on
            values; reset by whoever asks.
        is_editing: whether an edit of the user's runs, whose calls are recorded and not edited.
        objects: those that were met among arguments and that no graph can hold.
    """

    is_dynamic = is_editing = False
    call: Call | None = None
    module: ModuleCall | None = None
    is_main = is_entered = False

    def __init__(self) -> None:
        self.objects: list[Any] = []

    def taken(self) -> list[Any]:
        """Returns the objects, and clears the list."""
        objects, self.objects = self.objects, []
        return objects
