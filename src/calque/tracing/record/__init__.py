"""Recording: a program runs once, on real data, and what it does becomes a graph.

>>> import calque, torch
>>> recording = calque.record(lambda x: x.view(-1)[:2] * 2, torch.ones(2, 3))
>>> print(recording.graph().code)
<BLANKLINE>
...
    view = x.view(-1)
    ...
"""

from calque.tracing.record.api import record
from calque.tracing.record.escapes import Escape
from calque.tracing.record.events import Call
from calque.tracing.record.recording import Recording
from calque.tracing.record.witness import Witness

__all__ = ["Call", "Escape", "Recording", "Witness", "record"]
