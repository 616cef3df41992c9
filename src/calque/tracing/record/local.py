"""A recorder's state for each thread."""

import threading
from typing import Any

from calque.tracing.record.events import ModuleCall, RecordedCall


class Local(threading.local):
    """A recorder's state for each thread.

    Attributes:
        call: the PyTorch call that is running.
        module: the module call that is running.
        is_main: whether the recording was started in this thread.
        is_entered: whether the program runs in this thread; autograd's own threads have our modes
            too.
        is_dynamic: whether the last arguments included a value whose shape depends on values; reset
            by the reader.
        is_editing: whether a user's edit is running, whose calls are recorded but not edited.
        objects: the objects found among arguments that no graph can hold.
    """

    is_dynamic = is_editing = False
    call: RecordedCall | None = None
    module: ModuleCall | None = None
    is_main = is_entered = False

    def __init__(self) -> None:
        self.objects: list[Any] = []

    def taken(self) -> list[Any]:
        """Returns the objects, and clears the list."""
        objects, self.objects = self.objects, []
        return objects
