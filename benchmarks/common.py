"""What the benchmarks share: interleaved rounds, and a table."""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

torch.set_num_threads(1)

Times = dict[str, float]


def quick(description: str | None) -> bool:
    """Returns True if `--quick` was asked for: fewer rounds and cases."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and cases")
    return parser.parse_args().quick


def interleave(
    candidates: dict[str, Callable[[], object]],
    rounds: int = 9,
    calls: int = 10,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """The median time of a call of each candidate, in seconds.

    Every round times every candidate, each round beginning with another one, so that a busy moment
    of the machine falls on all of them. The first call of each turn is not timed: it pays for the
    caches that the candidate before has left cold.

    Args:
        clock: what tells the time; `time.process_time` where the machine is busy with other things.
    """
    names = list(candidates)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds):
        shift = index % len(names)
        for name in names[shift:] + names[:shift]:
            call = candidates[name]
            call()
            start = clock()
            for _ in range(calls):
                call()
            samples[name].append((clock() - start) / calls)
    return {name: statistics.median(times) for name, times in samples.items()}


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown, its columns aligned."""
    widths = [max(len(str(row[i])) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (str(cell) for cell in cells)
        padded = [first.ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        return "| " + " | ".join(padded) + " |"

    print(f"\n{title}\n")
    print(line(header))
    print(
        "|" + "|".join("-" * (w + 1) + ("-" if i == 0 else ":") for i, w in enumerate(widths)) + "|"
    )
    for row in rows:
        print(line(row))


def milliseconds(seconds: float) -> str:
    """1.234 ms as `1.23`."""
    return f"{1e3 * seconds:.2f}"


def microseconds(seconds: float) -> str:
    """12.34 µs as `12.3`."""
    return f"{1e6 * seconds:.1f}"


def program_bytes(compiled: jax.stages.Compiled) -> int:
    """The memory that running a compiled program needs."""
    stats: Any = compiled.memory_analysis()
    return (
        stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        + stats.temp_size_in_bytes
        - stats.alias_size_in_bytes
    )
