"""The tests in `on_devices` pass in a process of eight devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.devices import devices

# Each of these tests has the usual time limit.
pytestmark = pytest.mark.timeout(1800)

TESTS = Path(__file__).parent.parent
HERE = [str(TESTS / part / "on_devices") for part in ("sharding", "distributed")]


@pytest.mark.skipif("device_count=8" in os.environ.get("XLA_FLAGS", ""), reason="they run here")
@pytest.mark.parametrize(
    "marked", ["not conformance", pytest.param("conformance", marks=pytest.mark.conformance)]
)
def test_they_pass(marked: str) -> None:
    options = ["-n", "0", "-q", "--no-header", "-m", marked]
    command = [sys.executable, "-m", "pytest", *options, *HERE]
    done = subprocess.run(command, env=os.environ | devices(8), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
