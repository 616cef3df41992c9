"""Two processes of four devices each are one program (`two_processes.py`)."""

import os
import subprocess
from pathlib import Path

from tests.devices import LAUNCH

PROGRAM = Path(__file__).parent / "two_processes.py"
CHECKS = (
    "values_on_the_host",
    "disagreement",
    "disagreement_in_programs",
    "bad_labels",
    "state_that_joins",
    "flood",
    "batches",
    "training",
    "collectives",
    "checkpoints",
    "state_dicts",
    "names",
)


def test_two_processes_are_one_program() -> None:
    command = [*LAUNCH, "-n", "2", "--devices", "4"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=280,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    for check in CHECKS:
        assert done.stdout.count(f"{check} in ") == 2
