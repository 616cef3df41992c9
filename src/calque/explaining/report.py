"""The result of `calque.explain`."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from calque.explaining.rendering import as_html, as_text

Served = Literal["rule", "decomposition", "fallback"]


@dataclass(frozen=True)
class EntryPoint:
    """An entry point to XLA, tried on a program.

    Attributes:
        name: what a user calls: `"calque.jit"`, `"calque.trace"` or `"torch.compile"`.
        captured: whether it captures the program; None if that was not tried.
        reason: why not (the error's message, with the line and the remedy), or how.
    """

    name: str
    captured: bool | None
    reason: str = ""


@dataclass(frozen=True)
class Operator:
    """A PyTorch operator that a program calls.

    Attributes:
        name: PyTorch's name, such as "aten::addmm".
        count: how often it is called in one run.
        served: how it runs. `"rule"`: a rule of the device; `"decomposition"`: PyTorch's
            decomposition into other operators; `"fallback"`: the CPU kernel, with copies in both
            directions.
    """

    name: str
    count: int
    served: Served


@dataclass
class Report:
    """How a program runs on XLA; `print` it, show it in a notebook, or call `to_dict()`.

    Attributes:
        name: the program's name.
        entry_points: the entry points to XLA, and whether each captures the program.
        operators: the operators that it calls, the most frequent first; if the trace was refused,
            only those up to that line.
        host_reads: where Python reads a tensor's value; None if that was not checked.
        lifted: the implicit inputs of the program, by kind, with names.
        guards: the values that are compared before each call.
        written, donated: how many tensors it writes to, and how many of their buffers are reused.
        traces: for a jitted function, the reason for each trace.
        flops: floating-point operations of one run, as XLA counts them; None if unknown.
        memory: bytes of `"arguments"`, `"outputs"`, `"temporaries"` and `"code"`, as XLA plans
            them.
        differences: where the CPU and the device disagree, in order; None if they were not
            compared.
        notes: what could not be checked, and why.
    """

    name: str
    entry_points: list[EntryPoint] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    host_reads: list[str] | None = None
    lifted: dict[str, list[str]] = field(default_factory=dict)
    guards: list[str] = field(default_factory=list)
    written: int = 0
    donated: int = 0
    traces: list[str] = field(default_factory=list)
    flops: float | None = None
    memory: dict[str, int] = field(default_factory=dict)
    differences: list[str] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def captured(self) -> bool:
        """Returns True if any entry point captures the program."""
        return any(one.captured for one in self.entry_points)

    def to_dict(self) -> dict[str, Any]:
        """Returns the whole report as plain data, which `json.dumps` accepts."""
        return {"captured": self.captured, **asdict(self)}

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)
