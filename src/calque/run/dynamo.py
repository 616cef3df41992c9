"""The backend of `torch.compile(model, backend="calque")`.

PyTorch finds it by the entry point `torch_dynamo_backends`. Dynamo captures the user's Python,
AOTAutograd makes one graph of the forward and one of the backward; each becomes one XLA program.
Tensors of the device are handed over as they are; those of the CPU share their memory.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from functorch.compile import min_cut_rematerialization_partition
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

import calque  # noqa: F401  (registers the device)
from calque.run.bucketed import BucketedGraph
from calque.run.buckets import Buckets
from calque.run.graphs import CompiledGraph, boxed

_OPTIONS = {"max_programs": 64, "buckets": None, "checks": False}


def backend(
    graph: fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph of dynamo's.

    Args:
        graph: what dynamo captured.
        example_inputs: the inputs it captured it with.
        mode: only "default": XLA has no such modes.
        options: `max_programs`, for how many sets of shapes a graph with dynamic shapes keeps
            programs (64); `buckets`, what sizes that vary are padded to: "pow2", a list of sizes,
            or a dict of such by the dimension of the input; `checks`, whether bad indices, class
            labels, divisors and matrices raise what PyTorch raises (False).

    Raises:
        ValueError: a mode or an option that this backend does not have.
    """
    if mode not in (None, "default"):
        raise ValueError(f"backend 'calque' has no mode {mode!r}: XLA optimizes in one way")
    unknown = set(options or {}) - set(_OPTIONS)
    if unknown:
        raise ValueError(
            f"backend 'calque' has no option {', '.join(sorted(unknown))}; it has "
            f"{', '.join(_OPTIONS)}"
        )
    chosen = {**_OPTIONS, **(options or {})}
    most, checks = chosen["max_programs"], chosen["checks"]
    if checks and chosen["buckets"] is not None:
        raise ValueError("backend 'calque' has checks or buckets, not both: padding is not checked")
    buckets = None if chosen["buckets"] is None else Buckets(chosen["buckets"], graph)

    def compile_graph(
        graph: fx.GraphModule, inputs: Any, ahead: bool = False
    ) -> Callable[..., Any]:
        if buckets is None or not buckets.rules:
            return boxed(CompiledGraph(graph, most, checks))
        return boxed(BucketedGraph(graph, most, buckets, _returned() if ahead else None))

    compiler = aot_autograd(
        fw_compiler=partial(compile_graph, ahead=True),
        bw_compiler=compile_graph,
        inference_compiler=compile_graph,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return compiler(graph, example_inputs)


def _returned() -> int | None:
    """How many results of a forward the user gets, before those that its backward takes."""
    context = TracingContext.try_get()
    return None if context is None else getattr(context.fw_metadata, "num_forward_returns", None)
