"""The environment of processes that tests start with several devices."""

import os

_COUNT = "--xla_force_host_platform_device_count"


def devices(count: int) -> dict[str, str]:
    """What gives a process `count` devices; XLA's other options stay as they are here."""
    others = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if _COUNT not in flag]
    return {"XLA_FLAGS": " ".join([*others, f"{_COUNT}={count}"])}
