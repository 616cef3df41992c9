"""The tests in `on_devices` pass in a process of eight devices, half of them in `make test`."""

import os
from pathlib import Path

import pytest

from tests import new_process
from tests.devices import devices

# Each of these tests has the usual time limit.
pytestmark = pytest.mark.timeout(1800)

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent
HERE = [str(TESTS / part / "on_devices") for part in ("sharding", "distributed")]


@pytest.mark.skipif("device_count=8" in os.environ.get("XLA_FLAGS", ""), reason="they run here")
@pytest.mark.parametrize(
    ("share", "marked"),
    [
        ("0.5", "not conformance"),
        pytest.param("1", "conformance or not conformance", marks=pytest.mark.conformance),
    ],
)
def test_they_pass(share: str, marked: str) -> None:
    options = ["-n", "0", "-q", "--no-header", "-m", marked]
    program = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    environment = os.environ | devices(8) | {"CALQUE_SHARE": share}
    done = new_process.run(program, *options, *HERE, env=environment, cwd=ROOT, timeout=1800)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
