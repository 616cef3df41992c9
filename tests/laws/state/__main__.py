"""A table of what the programs do: `python -m tests.laws.state --mode jit --group reads`."""

import argparse
import os
import sys
from collections import Counter, defaultdict

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import torch

from tests.laws.state.case import MODES
from tests.laws.state.refusals import REFUSALS, fragment_of
from tests.laws.state.runner import REFUSED, RIGHT, run
from tests.laws.state.table import load


def main() -> int:
    """Run the chosen programs and print a row for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.laws.state", description=__doc__)
    parser.add_argument("--mode", choices=MODES, action="append", help="all, if none is named")
    parser.add_argument("--group", action="append", help="a group, or the beginning of its name")
    parser.add_argument("--name", action="append", help="a part of a program's name")
    parser.add_argument("--failing", action="store_true", help="only rows that a test would fail")
    parser.add_argument("--any", action="store_true", help="also programs of other modes")
    parser.add_argument("--refusals", action="store_true", help="list what was refused")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[tuple[str, str, str]] = Counter()
    refused: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    bad = 0
    for program in load().values():
        if chosen.group and not any(program.group.startswith(g) for g in chosen.group):
            continue
        if chosen.name and not any(part in program.name for part in chosen.name):
            continue
        named = chosen.mode or program.modes
        for mode in named if chosen.any else (mode for mode in program.modes if mode in named):
            outcome = run(program, mode)
            listed = REFUSALS.get((program.name, mode))
            fine = outcome.kind == RIGHT and listed is None and not outcome.excess
            fine |= outcome.kind == REFUSED and listed is not None and listed in outcome.message
            bad += not fine
            counts[program.group, mode, outcome.kind] += 1
            if outcome.kind == REFUSED:
                refused[mode, fragment_of(outcome.message)].append(program.name)
            if chosen.failing and fine:
                continue
            said = (outcome.excess or outcome.message).replace("\n", " | ")
            print(
                f"{' ' if fine else '*'} {outcome.kind:8}{mode:8}{program.group:10}"
                f"{program.name:58}{outcome.traces:3} traces{outcome.compilations:3} compiled"
                f"{1e3 * outcome.seconds:7.0f} ms  {said[:300]}",
                flush=True,
            )
    print()
    for (name, mode, kind), count in sorted(counts.items()):
        print(f"{name:12}{mode:10}{kind:10}{count:5}")
    print(f"{sum(counts.values())} runs, {bad} of them not as agreed")
    for (mode, fragment), names in sorted(refused.items()) if chosen.refusals else ():
        print(f"\n{mode}: {fragment}\n    {' '.join(names)}")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
