"""Import this before PyTorch and JAX to keep a process on one core.

Their thread pools are sized when they start, and XLA has no setting for its own; later than that
the import does nothing.
"""

import os
import sys

if hasattr(os, "sched_setaffinity") and "torch" not in sys.modules:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
