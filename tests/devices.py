"""How tests start processes with several devices."""

import os
import sys

LAUNCH = [
    sys.executable,
    "-c",
    "import sys; from calque_cli.main import main; sys.exit(main())",
    "launch",
]
"""`calque launch` as its script runs it; with `python -m calque` it would import PyTorch."""

_COUNT = "--xla_force_host_platform_device_count"


def devices(count: int) -> dict[str, str]:
    """What gives a process `count` devices; XLA's other options stay as they are here."""
    others = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if _COUNT not in flag]
    return {"XLA_FLAGS": " ".join([*others, f"{_COUNT}={count}"])}
