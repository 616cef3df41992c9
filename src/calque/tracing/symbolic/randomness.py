"""Random numbers that operators do not draw, and functions that set seeds."""

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from calque.tracing.core.active import current_trace
from calque.tracing.core.patching import Patches
from calque.tracing.core.refusals import refuse_because
from calque.tracing.core.torch_settings import tracer_of_program
from calque.tracing.graph.checks import manual_seed

_OF_PYTHON = "random randint randrange uniform choice choices sample shuffle gauss normalvariate"
_OF_NUMPY = "rand randn randint random uniform normal choice shuffle permutation"


def hold_randomness(patches: Patches) -> None:
    """Record `torch.manual_seed`; refuse what a graph would not repeat."""
    patches.hold(torch, "manual_seed", _seeded)
    patches.hold(torch, "Generator", _generator)
    for module in (torch, torch.random):  # fork_rng has it from the second
        patches.hold(module, "set_rng_state", _refused_state)
        for name in ("initial_seed", "get_rng_state", "seed"):
            patches.hold(module, name, functools.partial(_refused_seed, name))
    for module, names in ((random, _OF_PYTHON), (np.random, _OF_NUMPY)):
        for name in names.split():
            what = (
                f"{module.__name__}.{name} draws a number while tracing, which the graph would "
                "not repeat"
            )
            patches.hold(module, name, _refused(what))


def _seeded(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def seed(seed: Any) -> Any:
        tracer = tracer_of_program()
        if tracer is None:
            return original(seed)
        return tracer.create_proxy("call_function", manual_seed, (seed,), {})

    return seed


def _generator(original: Any) -> Any:
    class Refusing(type):
        """Replaces `torch.Generator`, also for code that uses the class."""

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            tracer = tracer_of_program()
            if tracer is None:
                return original(*args, **kwargs)
            if hasattr(tracer, "make_generator"):  # a recording, which has a real one
                return tracer.make_generator(*args, **kwargs)
            refuse_because(
                tracer,
                "a torch.Generator is created while tracing, so its state would carry over from "
                "run to run",
                "Create it outside the program, or use torch.manual_seed.",
            )

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

    return Refusing("Generator", (), {})


def _refused_state(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_state(state: Any) -> None:
        trace = current_trace()
        if trace is None or trace.tracer.contexts is None:
            return original(state)
        refuse_because(
            trace.tracer,
            "the random state is set, which a graph cannot do",
            "Use torch.manual_seed, or set it outside the program.",
        )

    return set_state


def _refused_seed(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def ask() -> Any:
        tracer = tracer_of_program()
        if tracer is None:
            return original()
        why = f"torch.{name} reads the random state, which a graph would not do again"
        if hasattr(tracer, "make_generator"):  # a recording, which may go on
            tracer.refuse(why)
            return original()
        refuse_because(tracer, why, "Pass the number as an argument, or use torch.manual_seed.")

    return ask


def _refused(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any, **kwargs: Any) -> Any:
            tracer = tracer_of_program()
            if tracer is None:
                return original(*args, **kwargs)
            refuse_because(
                tracer, what, "Draw with torch.rand(()), or pass the number as an argument."
            )

        return draw

    return wrap
