"""Import this before PyTorch and JAX to keep a process on one core: their thread pools are sized
when they start, and XLA has no setting for its own.
"""

import os

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
