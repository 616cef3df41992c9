"""The tests in `on_devices` pass in a process of eight devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
HERE = [str(TESTS / part / "on_devices") for part in ("sharding", "distributed")]
EIGHT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}


@pytest.mark.skipif("device_count=8" in os.environ.get("XLA_FLAGS", ""), reason="they run here")
@pytest.mark.parametrize(
    "marked", ["not conformance", pytest.param("conformance", marks=pytest.mark.conformance)]
)
def test_they_pass(marked: str) -> None:
    options = ["-n", "0", "-q", "--no-header", "-m", marked]
    command = [sys.executable, "-m", "pytest", *options, *HERE]
    done = subprocess.run(command, env=os.environ | EIGHT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
