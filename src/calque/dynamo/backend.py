"""The backend of `torch.compile(model, backend="calque")`.

PyTorch finds it by the entry point `torch_dynamo_backends`. Dynamo captures the user's Python, and
AOTAutograd creates a forward and a backward graph; each becomes one XLA program. Tensors on the
device are passed directly; those on the CPU share their memory with JAX.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from torch import fx

import calque  # noqa: F401  (registers the device)
from calque.dynamo.buckets.bucketed_graph import BucketedGraph
from calque.dynamo.buckets.options import Buckets
from calque.dynamo.graphs.aliasing import Aliases
from calque.dynamo.graphs.attention import DECOMPOSITIONS
from calque.dynamo.graphs.graph import CompiledGraph, boxed
from calque.dynamo.graphs.normalization import decompose_symbolic_norms
from calque.dynamo.graphs.overlapping import Writes, may_overlap
from calque.dynamo.graphs.saved_operands import partitioned
from calque.upstream.torch_compile import aot_autograd, functorch_config
from calque.upstream.torch_internals import TracingContext

_OPTIONS = {"max_programs": 64, "buckets": None, "checks": False}


def backend(
    graph: fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph captured by Dynamo.

    Args:
        graph: the captured graph.
        example_inputs: the inputs that it was captured with.
        mode: only "default": XLA has no such modes.
        options: `max_programs`, the number of programs that a graph with dynamic shapes keeps, one
            for each set of shapes (64); `buckets`, the sizes to pad varying sizes to: "pow2", a
            list of sizes, or a dict of either by the dimension of the input; `checks`, whether bad
            indices, class labels, divisors and matrices raise PyTorch's errors (False).

    Raises:
        ValueError: this backend does not support the mode or an option.
    """
    chosen = _settings(mode, options)
    most, checks = chosen["max_programs"], chosen["checks"]
    buckets = None if chosen["buckets"] is None else Buckets(chosen["buckets"], graph)
    writes = Writes()
    decompose_symbolic_norms(graph)

    def compile_graph(
        graph: fx.GraphModule, inputs: object, kind: Literal["forward", "backward", "inference"]
    ) -> Callable[..., Any]:
        aliases = Aliases()
        if kind == "forward":
            _donate_nothing()
        if kind != "backward":
            aliases = Aliases.of_current_graph()
            writes.see()
        if buckets is None or not buckets.rules:
            return boxed(CompiledGraph(graph, most, checks, aliases))
        returned = _returned() if kind == "forward" else None
        return boxed(BucketedGraph(graph, most, buckets, returned, aliases))

    compiler = aot_autograd(
        fw_compiler=partial(compile_graph, kind="forward"),
        bw_compiler=partial(compile_graph, kind="backward"),
        inference_compiler=partial(compile_graph, kind="inference"),
        decompositions=DECOMPOSITIONS,
        partition_fn=partitioned,
        keep_inference_input_mutations=True,
    )
    # If several arguments share memory, the operators of a view would be replayed on the memory
    # instead of the argument.
    repeated = functorch_config.view_replay_for_aliased_outputs and not may_overlap(example_inputs)
    with functorch_config.patch(view_replay_for_aliased_outputs=repeated):
        run = compiler(graph, example_inputs)
    return writes.guarded(graph, example_inputs, run)


def _settings(mode: str | None, options: dict[str, Any] | None) -> dict[str, Any]:
    """Checks the options, and returns them with defaults filled in."""
    if mode not in (None, "default"):
        raise ValueError(f"backend 'calque' does not support mode={mode!r}: leave it out")
    unknown = set(options or {}) - set(_OPTIONS)
    if unknown:
        raise ValueError(
            f"backend 'calque' has no option {', '.join(sorted(unknown))}; it has "
            f"{', '.join(_OPTIONS)}"
        )
    settings = {**_OPTIONS, **(options or {})}
    if settings["checks"] and settings["buckets"] is not None:
        raise ValueError(
            "backend 'calque' does not support checks and buckets together: padded values cannot "
            "be checked"
        )
    return settings


def _donate_nothing() -> None:
    """Tell AOTAutograd that a second backward pass may follow, because this backend's never takes
    the memory of what the forward has saved.
    """
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def _returned() -> int | None:
    """Returns how many results of a forward graph are the user's; those for its backward follow."""
    context = TracingContext.try_get()
    return None if context is None else getattr(context.fw_metadata, "num_forward_returns", None)
