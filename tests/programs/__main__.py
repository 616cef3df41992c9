"""Run programs that were not written for calque, and print how they fared.

    make programs CHECKOUTS="~/examples ~/nanoGPT ~/minGPT"

Each program runs three times, in processes of their own: on the CPU without calque, on the device,
and on the device with its models under torch.compile. Nothing in it is changed: `import calque`
comes first, and the device is the accelerator's or an argument of its command line.
"""

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.programs.catalogue import PROGRAMS, Program
from tests.programs.stand_ins import TEXT, write_nanogpt

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/programs.md"
HEAD = (
    "| program | mode | losses compared | difference, first eight | difference, all | time / CPU |",
    "|---|---|---:|---:|---:|---:|",
)
EQUAL = 1e-3
"""Losses that differ by less, relative to the larger, are equal: sums are made in another order."""
FIRST = 8
"""So many losses have to be equal. Training may amplify rounding: Adam divides small gradients by
themselves, and two networks that play against each other double what differs at each step."""


def prepare(program: Program, checkout: Path, into: Path) -> Path:
    """A copy of the checkout with the data that it lacks; gives the folder to start in."""
    copy = into / checkout.name
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git"))
    if program.text:
        (copy / program.text).write_text(TEXT[:100_000])
    if program.nanogpt_data:
        write_nanogpt(copy / program.nanogpt_data)
    for source, name in program.copies:
        target = (copy / source).with_name(name)
        if not target.exists():
            shutil.copy(copy / source, target)
    return program.start(copy)


def run(program: Program, mode: str, checkout: Path) -> dict[str, Any]:
    """The report of one run, or the end of what it printed under "error"."""
    with tempfile.TemporaryDirectory() as folder:
        start = prepare(program, checkout, Path(folder))
        script = Path(folder) / checkout.name / program.script
        report = Path(folder) / "report.json"
        compile_itself = str(mode == "compile" and "{compile}" in program.arguments)
        arguments = program.arguments.format(compile=compile_itself)
        arguments += " " + program.device.format("cpu" if mode == "cpu" else "jax")
        child = [sys.executable, "-m", "tests.programs.child", mode, str(report)]
        child += [str(int(program.names_no_device)), str(script), *arguments.split()]
        path = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            child,
            cwd=start,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "MPLBACKEND": "Agg"},
            capture_output=True,
            text=True,
        )
        if done.returncode or not report.exists():
            return {"error": (done.stdout + done.stderr)[-4000:]}
        return json.loads(report.read_text())


def difference(ours: list[float], theirs: list[float]) -> float:
    """The largest difference of two losses, relative to the larger of them."""
    if len(ours) != len(theirs):
        return float("inf")
    scales = [max(abs(a), abs(b), 1e-30) for a, b in zip(ours, theirs)]
    return max((abs(a - b) / s for a, b, s in zip(ours, theirs, scales)), default=float("nan"))


def row(program: Program, mode: str, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """A row of the table."""
    if failed := ours.get("error") or theirs.get("error"):
        return f"| {program.name} | {mode} | fails: {failed.strip().splitlines()[-1]} | | | |"
    off = difference(ours["losses"][:FIRST], theirs["losses"][:FIRST])
    verdict = f"{off:.0e}" if off < EQUAL else f"**{off:.0e}**"
    last = difference(ours["losses"], theirs["losses"])
    settled = [statistics.median(run["seconds"][3:] or [float("nan")]) for run in (ours, theirs)]
    count = f"{len(ours['losses'])}{'' if ours['ended'] else ', then stopped'}"
    cells = [program.name, mode, count, verdict, f"{last:.0e}", f"{settled[0] / settled[1]:.2f}"]
    return f"| {' | '.join(cells)} |"


def rows(checkouts: list[Path], only: str) -> Iterator[str]:
    """The rows, as they are known; says on stderr what is left out, and why."""
    for program in PROGRAMS:
        if only not in program.name:
            continue
        found = [c for c in checkouts if (c / program.script).exists()]
        lacking = [name for name in program.needs if importlib.util.find_spec(name) is None]
        if not found or lacking:
            why = f"needs {', '.join(lacking)}" if found else f"no checkout has {program.script}"
            print(f"{program.name}: left out, {why}", file=sys.stderr)
            continue
        theirs = run(program, "cpu", found[0])
        for mode in ("eager", "compile")[: 1 + program.compiled]:
            ours = run(program, mode, found[0])
            if error := ours.get("error") or theirs.get("error"):
                print(error, file=sys.stderr)
            yield row(program, mode, ours, theirs)


def main() -> None:
    """Print the table, and with --write put it into the documentation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="+", type=lambda s: Path(s).expanduser().resolve())
    parser.add_argument("--only", default="", help="programs with this in their name")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    lines = [*HEAD]
    print(*HEAD, sep="\n", flush=True)
    for line in rows(options.checkouts, options.only):
        lines.append(line)
        print(line, flush=True)
    if options.write:
        begin, end = "<!-- table -->\n", "<!-- end of the table -->"
        before, _, rest = PAGE.read_text().partition(begin)
        after = rest.partition(end)[2]
        PAGE.write_text(before + begin + "\n" + "\n".join(lines) + "\n\n" + end + after)
    sys.exit(any("fails:" in line or "**" in line for line in lines))


if __name__ == "__main__":
    main()
