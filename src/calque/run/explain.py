"""Reports on jitted functions."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Explanation:
    """What a jitted function was compiled to.

    Attributes:
        name: the function.
        traces: why each trace was made, in order.
        compilations: how often XLA compiled.
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
            lines.append(f"    lifted: {program['lifted']}")
            lines.append(f"    written: {program['written']} tensors, {program['donated']} donated")
            lines.append(f"    guarded: {', '.join(program['guards']) or 'nothing'}")
        return "\n".join(lines)


def explain(jitted: Any) -> Explanation:
    """The report on a `Jitted`."""
    result = Explanation(str(jitted), list(jitted.history), jitted.compilations)
    for programs in jitted.programs.values():
        result.programs.extend(program.describe() for program in programs)
    return result
