"""Reports on jitted functions."""

from dataclasses import dataclass, field
from typing import Any

_SHOWN = 8


@dataclass
class Explanation:
    """The program that a jitted function was compiled to.

    Attributes:
        name: the function.
        traces: the reason for each trace, in order.
        compilations: the number of programs that XLA compiled.
        programs: a description of each program in use.
    """

    name: str
    traces: list[str]
    compilations: int
    programs: list[dict[str, Any]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.name}: {len(self.traces)} traces, {self.compilations} compilations"]
        lines += [f"  trace {i + 1}: {reason}" for i, reason in enumerate(self.traces)]
        for index, program in enumerate(self.programs):
            lines.append(f"  program {index + 1}: {program['calls']} calls")
            if "eager" in program:
                lines.append(f"    runs eagerly: {program['eager']}")
                continue
            for kind, names in program["lifted"].items():
                lines.append(f"    lifted: {len(names)} x {kind}{_named(names)}")
            if program["rebound"]:
                lines.append(f"    rebound at each call: {', '.join(program['rebound'])}")
            if program["appended"]:
                lines.append(f"    appended to at each call: {', '.join(program['appended'])}")
            if program["assumed"]:
                lines.append(f"    specialized: {program['hits']} hits, {program['misses']} misses")
                lines += [f"      {value}" for value in program["assumed"][:_SHOWN]]
            lines.append(f"    written: {program['written']} tensors, {program['donated']} donated")
            lines.append(f"    guarded: {', '.join(program['guards']) or 'nothing'}")
        return "\n".join(lines)


def _named(names: list[str]) -> str:
    known = [name for name in names if name]
    if not known:
        return ""
    more = f", ... and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return f" ({', '.join(known[:_SHOWN])}{more})"


def explain(jitted: Any) -> Explanation:
    """Returns the report on a `Jitted`."""
    result = Explanation(str(jitted), list(jitted.history), jitted.compilations)
    for programs in jitted.programs.values():
        result.programs.extend(program.describe() for program in programs)
    return result
