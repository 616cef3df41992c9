"""What a jitted call spends on seeing that the Python state is what it was.

    python -m benchmarks.guards [--quick]

Every module, dict and setting is compared that a program was compiled for; that grows with what
the function can reach.
"""

from benchmarks import one_core  # noqa: F401  (first)

# isort: split
from benchmarks import common
from benchmarks.models import COMPILED, OPTIMIZERS, build, make_step

# isort: split
import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import calque
from calque.jitting.generated.guards import write_guards
from calque.jitting.generated.source import GeneratedFunction

Step = Callable[[], Any]
JIT: Any = calque.jit


def steps(quick: bool) -> dict[str, tuple[Any, Step]]:
    """Each jitted function, with a call of it."""
    found: dict[str, tuple[Any, Step]] = {}
    for case in COMPILED[:1] if quick else COMPILED:
        model, (x, y) = build(case, "jax")
        step = JIT(make_step(model, OPTIMIZERS["AdamW"](model.parameters())))
        found[case.name] = step, lambda step=step, x=x, y=y: step(x, y)
    if importlib.util.find_spec("transformers"):
        found["T5, 6 + 6 layers (transformers)"] = _t5()
    for modules, values in ((10, 100), (100, 1_000)) if quick else ((100, 1_000), (1_000, 10_000)):
        found[f"{modules:,} modules, {values:,} values"] = _large(modules, values)
    return found


def _t5() -> tuple[Any, Step]:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 128, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4}
    config = T5Config(num_layers=6, num_decoder_layers=6, decoder_start_token_id=0, **sizes)
    model = T5ForConditionalGeneration(config).to("jax")
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 128, (2, 8)).to("jax")

    @JIT
    def step(ids: torch.Tensor) -> torch.Tensor:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, lambda: step(ids)


def _large(modules: int, values: int) -> tuple[Any, Step]:
    """A model of many modules that reads a configuration of many values."""
    model = nn.Sequential(*(nn.ReLU() for _ in range(modules))).to("jax")
    rows = [{"scale": 1.0, "name": f"row {i}", "index": i} for i in range(values // 3)]
    config = SimpleNamespace(rows=rows)
    x = torch.ones(4, device="jax")

    @JIT
    def run(x: torch.Tensor) -> torch.Tensor:
        return model(x) * sum(row["scale"] for row in config.rows)

    return run, lambda: run(x)


def guards(name: str, jitted: Any, call: Step) -> list[str]:
    """A row of the first table."""
    for _ in range(4):
        call()
    (program,) = (program for programs in jitted.programs.values() for program in programs)
    candidates = {"guards": _comparing(program.guards), "call": call}
    times = common.interleave(candidates, 15, 20)
    share = times["guards"] / times["call"]
    return [name, *(common.microseconds(times[n]) for n in candidates), f"{share:.2f}"]


def _comparing(guards: Any) -> Callable[[], Any]:
    """The comparisons of a call like the last one, without the call."""
    source = GeneratedFunction()
    write_guards(source, guards, grad=True, alone=True)
    source.line("return None")
    compare = source.function()
    assert compare() is None, "the guards do not hold"
    return compare


def main() -> None:
    quick = common.quick(__doc__)
    rows = [guards(name, *one) for name, one in steps(quick).items()]
    header = ["state", "guards, µs", "call, µs", "share"]
    common.table("What the guards of a jitted call take", header, rows)


if __name__ == "__main__":
    main()
