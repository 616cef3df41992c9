import json
from pathlib import Path

import pytest
import torch

from tests import new_process
from tests.programs.__main__ import ROOT, difference, prepare, row
from tests.programs.catalogue import PROGRAMS, Program
from tests.programs.child import Steps, _Enough
from tests.programs.stand_ins import Digits

SCRIPT = """
import argparse, sys
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
rate = parser.parse_args().rate
torch.manual_seed(1)
model = torch.nn.Linear(3, 1).to(torch.accelerator.current_accelerator())
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for _ in range(5):
    optimizer.zero_grad()
    x = torch.randn(8, 3, device=model.weight.device)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("mode", ["cpu", "eager"])
def test_a_script_is_run_as_it_is_and_its_losses_written_down(tmp_path: Path, mode: str) -> None:
    script, report = tmp_path / "script.py", tmp_path / "report.json"
    script.write_text(SCRIPT)
    program = "import runpy; runpy.run_module('tests.programs.child', run_name='__main__')"
    arguments = (mode, str(report), "0", str(script), "--rate", "0.1")
    new_process.check(program, *arguments, cwd=ROOT)
    found = json.loads(report.read_text())
    assert found["ended"] and len(found["losses"]) == 5 and len(found["seconds"]) == 4
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    first = model(torch.randn(8, 3)).square().mean().item()
    assert found["losses"][0] == pytest.approx(first, rel=1e-5)


def test_a_program_ends_after_so_many_steps() -> None:
    steps = Steps(most=2)
    x = torch.ones(2, requires_grad=True)
    with steps.watched():
        (x * x).sum().backward()
        with pytest.raises(_Enough):
            (x * x).sum().backward()
    assert steps.report()["losses"] == [2.0, 2.0]


def test_a_row_says_what_differs_and_what_fails() -> None:
    run = {"losses": [1.0, 0.5], "seconds": [0.1] * 5, "ended": True}
    other = {**run, "losses": [1.0, 0.6], "seconds": [0.2] * 5}
    program = PROGRAMS[0]
    assert (
        row(program, "eager", run, run) == f"| {program.name} | eager | 2 | 0e+00 | 0e+00 | 1.00 |"
    )
    assert "**2e-01** | 2e-01 | 0.50 |" in row(program, "eager", run, other)
    assert "fails: ValueError: no" in row(program, "eager", {"error": "x\nValueError: no"}, run)
    late = {**run, "losses": [1.0] * 20 + [2.0]}
    late_row = row(program, "eager", late, {**run, "losses": [1.0] * 21})
    assert "| 0e+00 | 5e-01 |" in late_row
    assert difference([1.0], [1.0, 2.0]) == float("inf")


def test_data_that_a_checkout_lacks_are_made(tmp_path: Path) -> None:
    checkout = tmp_path / "theirs"
    (checkout / "data").mkdir(parents=True)
    (checkout / "data/a.txt").write_text("text")
    program = Program(
        "p",
        "theirs",
        "data/run.py",
        text="input.txt",
        nanogpt_data="d",
        copies=(("data/a.txt", "b.txt"),),
    )
    start = prepare(program, checkout, tmp_path / "copy")
    copied = start.parent
    assert (start / "b.txt").read_text() == "text"
    assert len((copied / "input.txt").read_text()) > 10_000
    assert {p.name for p in (copied / "d").iterdir()} == {"train.bin", "val.bin", "meta.pkl"}
    assert not (checkout / "input.txt").exists()


def test_the_digits_made_here_are_the_same_each_time() -> None:
    image, label = Digits(train=False)[3]
    again, _ = Digits(train=False)[3]
    assert image.size == (28, 28) and 0 <= label < 10
    assert image.tobytes() == again.tobytes() != Digits(train=True)[3][0].tobytes()
