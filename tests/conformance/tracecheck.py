"""Trace the models of `models.py` and compare their graphs with them, on inputs never seen.

    python -m tests.conformance.tracecheck 'timm/*' --tracer calque --tracer torch.fx

Each model is in evaluation mode, in float32, with random weights. A graph that gives the model's
own results on other inputs of the same shapes counts as captured.
"""

import argparse
import copy
import fnmatch
import inspect
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import calque
from calque.tracing import lower
from tests.conformance.modelcheck import close, tensors_of
from tests.conformance.models import MODELS

Tracing = Callable[[nn.Module, dict[str, Any]], Callable[..., Any]]


def _traced(model: nn.Module, inputs: dict[str, Any]) -> Callable[..., Any]:
    return calque.trace(model, **inputs)


def _called_before(model: nn.Module, inputs: dict[str, Any]) -> Callable[..., Any]:
    """What some models compute in their first call, and keep, is then there."""
    with torch.no_grad():
        model(**copy.deepcopy(inputs))
    return calque.trace(model, **inputs)


def _without_examples(model: nn.Module, inputs: dict[str, Any]) -> Callable[..., Any]:
    return calque.symbolic_trace(model, _left_out(model, inputs))


def _by_torch(model: nn.Module, inputs: dict[str, Any]) -> Callable[..., Any]:
    return torch.fx.symbolic_trace(model, _left_out(model, inputs))


def _lowered(model: nn.Module, inputs: dict[str, Any]) -> Callable[..., Any]:
    with torch.no_grad():
        return lower(calque.trace(model, **inputs), **inputs)


def _recorded(model: nn.Module, inputs: dict[str, Any]) -> Callable[..., Any]:
    """As `_called_before`: a recording is of a call that others are like."""
    with torch.no_grad():
        model(**copy.deepcopy(inputs))
        return calque.record(model, **copy.deepcopy(inputs)).graph()


def _left_out(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """The parameters that a call does not give, at their defaults: as users of torch.fx do."""
    parameters = inspect.signature(model.forward).parameters.values()
    return {
        p.name: p.default
        for p in parameters
        if p.name not in inputs and p.default is not inspect.Parameter.empty
    }


TRACERS: dict[str, Tracing] = {
    "calque": _traced,
    "calque, called before": _called_before,
    "calque, no examples": _without_examples,
    "lowered": _lowered,
    "recorded": _recorded,
    "torch.fx": _by_torch,
}


def made(name: str) -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    """A model, the inputs it is traced with, and other inputs."""
    torch.manual_seed(1)
    _, fresh = MODELS[name]()
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.eval(), inputs, fresh


def check(name: str, tracer: str = "calque") -> int:
    """Trace one model and compare; gives the number of nodes or raises what went wrong."""
    model, inputs, fresh = made(name)
    reference = copy.deepcopy(model)
    graph = TRACERS[tracer](model, inputs)
    with torch.no_grad():
        for given in (fresh, inputs):
            want = tensors_of(reference(**copy.deepcopy(given)))
            got = tensors_of(graph(**copy.deepcopy(given)))
            assert got.keys() == want.keys(), (got.keys(), want.keys())
            for path, tensor in want.items():
                close(path, got[path], tensor, 1e-5)
    nodes = getattr(getattr(graph, "graph", None), "nodes", ())
    return len(nodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--tracer", action="append", choices=list(TRACERS))
    parser.add_argument("--trace", action="store_true", help="print tracebacks")
    options = parser.parse_args()
    names = [n for n in MODELS if any(fnmatch.fnmatch(n, p) for p in options.patterns)]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for tracer in options.tracer or ["calque", "torch.fx"]:
        good = 0
        for name in names:
            started = time.perf_counter()
            try:
                verdict = f"ok {check(name, tracer)}"
                good += 1
            except Exception as error:
                if options.trace:
                    traceback.print_exc()
                lines = str(error).strip().splitlines() or [""]
                verdict = f"FAIL {type(error).__name__}: {' | '.join(lines)[:700]}"
            seconds = time.perf_counter() - started
            print(f"{tracer:20} {name:40} {seconds:5.1f}s {verdict}", flush=True)
        print(f"{tracer}: {good} of {len(names)}", flush=True)


if __name__ == "__main__":
    main()
