"""Recording: runs a program once, on real data, and turns what it does into a graph.

>>> import calque, torch
>>> recording = calque.record(lambda x: x.view(-1)[:2] * 2, torch.ones(2, 3))
>>> print(recording.graph().code.strip())
def forward(self, x):
    view = x.view(-1);  x = None
    getitem = view[slice(None, 2, None)];  view = None
    mul = getitem.mul(2);  getitem = None
    return mul
"""

from calque.tracing.record.api import record
from calque.tracing.record.escapes import Escape
from calque.tracing.record.events import RecordedCall
from calque.tracing.record.operator_mode import OperatorCounts
from calque.tracing.record.recording import Recording

__all__ = ["RecordedCall", "Escape", "Recording", "OperatorCounts", "record"]
