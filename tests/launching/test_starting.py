"""Processes are started together, told where they stand, and ended together."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from calque import cli
from calque.launching import Job
from tests.devices import LAUNCH


def launch(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LAUNCH, *map(str, arguments)], capture_output=True, text=True, timeout=240
    )


def test_the_environment_says_where_a_process_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --other=1")
    job = Job(["program.py"], 2, devices=4, nodes=3, node=1, coordinator="first:1234")
    made = job.environment(1, "first:1234")
    assert (made["RANK"], made["WORLD_SIZE"], made["LOCAL_RANK"]) == ("3", "6", "1")
    assert (made["MASTER_ADDR"], made["MASTER_PORT"]) == ("first", "1234")
    assert made["CALQUE_COORDINATOR"] == "first:1235"
    assert made["XLA_FLAGS"] == "--other=1 --xla_force_host_platform_device_count=4"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 0}, "at least one process"),
        ({"devices": 0}, "at least one device"),
        ({"nodes": 2}, "need a coordinator"),
        ({"nodes": 2, "node": 2, "coordinator": "a:1"}, "does not exist: the 2 machines"),
        ({"coordinator": "first"}, "the form host:1234"),
    ],
)
def test_jobs_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Job(["program.py"], **options)


def test_the_command_line_says_what_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["launch", "--nodes", "2", "program.py"]) == 2
    assert "need a coordinator" in capsys.readouterr().err


ONE_FAILS = """
import os, sys, time
import jax

line = f"of {jax.process_count()} with {jax.device_count()} {sys.argv[1:]}\\n"
os.write(1, line.encode())  # at once, for the other process writes, too
if jax.process_index() == 1:
    raise ValueError("a mistake")
time.sleep(600)
"""


def test_a_process_that_fails_is_named_and_ends_the_others(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ONE_FAILS)
    done = launch("-n", 2, "--devices", 2, tmp_path / "program.py", "--rounds", 3)
    assert done.returncode == 1
    assert done.stdout.count("of 2 with 4 ['--rounds', '3']") == 2
    assert "process 1 has failed with status 1" in done.stderr
    error = done.stderr[: done.stderr.index("ValueError: a mistake")]
    assert "runpy" not in error
    assert "line 8" in error


def test_all_processes_end_with_the_launch(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, time\nos.write(1, b'%d\\n' % os.getpid())\ntime.sleep(600)\n")
    command = [*LAUNCH, "-n", "2", "--devices", "1", str(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launched:
        assert launched.stdout is not None
        started = [int(launched.stdout.readline()) for _ in range(2)]
        launched.terminate()
        assert launched.wait(timeout=60) == 130
    for process in started:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
