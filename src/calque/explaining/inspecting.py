"""A program as traced by `calque.jit` and compiled by XLA; nothing is run."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from calque.errors.handlers import is_of_handler
from calque.explaining.report import Operator
from calque.jitting.jitted import Jitted
from calque.jitting.settings import Settings
from calque.program import trees
from calque.upstream.dispatch_mode import DispatchMode
from calque.upstream.torch_internals import OpOverload
from calque.view.served import served_by

_NO_WORK = frozenset(("prim", "prims", "profiler"))


class _Seen(DispatchMode):
    """Counts the operators of a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[OpOverload] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        if isinstance(func, OpOverload) and func.namespace not in _NO_WORK:
            self.counts[func] += 1
        return func(*args, **(kwargs or {}))

    def operators(self) -> list[Operator]:
        """Returns the operators seen, the most frequent first."""
        return [
            Operator(op.name(), count, served_by(op))  # type: ignore[arg-type]
            for op, count in self.counts.most_common()
        ]


class Inspection:
    """A program, traced as `calque.jit` traces it.

    Attributes:
        error: why it cannot be traced; None if it can.
        operators: the operators that it calls, until the end of the trace.
        is_random: whether it draws random numbers.
        described: the description of the program by `Jitted.explain`.
        lowered: the program as `jax.stages.Lowered`; None after an error.
    """

    def __init__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.error: Exception | None = None
        self.described: dict[str, Any] = {}
        self.lowered: Any = None
        jitted = Jitted(fn, Settings(verify=False))
        leaves, spec = trees.flatten_call(args, kwargs)
        with _Seen() as seen:
            try:
                program, self.lowered = jitted._trace(leaves, spec)
                self.described = program.describe()
            except Exception as error:
                if is_of_handler(error):
                    raise
                self.error = error
        self.operators: list[Operator] = seen.operators()
        self.is_random: bool = any(
            torch.Tag.nondeterministic_seeded in op.tags for op in seen.counts
        )

    def costs(self) -> tuple[float | None, dict[str, int]]:
        """Returns the floating-point operations and the memory of a run; compiles the program."""
        compiled = self.lowered.compile()
        cost = compiled.cost_analysis()
        cost = cost[0] if isinstance(cost, list) and cost else cost
        flops = cost.get("flops") if isinstance(cost, dict) else None
        plan = compiled.memory_analysis()
        if plan is None:
            return flops, {}
        memory = {
            "arguments": plan.argument_size_in_bytes,
            "outputs": plan.output_size_in_bytes - plan.alias_size_in_bytes,
            "temporaries": plan.temp_size_in_bytes,
        }
        return flops, memory
