"""How tests start processes with several devices."""

import os
import sys

_PROGRAM = """
import sys
from calque_cli import main, starting
starting.GRACE_SECONDS = 2
sys.exit(main.main())
"""
LAUNCH = [sys.executable, "-c", _PROGRAM, "launch"]
"""`calque launch` as its script runs it; with `python -m calque` it would import PyTorch. It waits
less for processes that are left over.
"""

_COUNT = "--xla_force_host_platform_device_count"


def devices(count: int) -> dict[str, str]:
    """What gives a process `count` devices; XLA's other options stay as they are here."""
    others = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if _COUNT not in flag]
    return {"XLA_FLAGS": " ".join([*others, f"{_COUNT}={count}"])}
