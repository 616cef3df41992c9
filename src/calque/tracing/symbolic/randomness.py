"""Random numbers from other sources than operators, and functions that set seeds."""

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from calque.tracing.core.active import current_trace
from calque.tracing.core.origins import is_engine
from calque.tracing.core.patching import Patches
from calque.tracing.core.refusals import refuse_because
from calque.tracing.core.torch_settings import tracer_of_program
from calque.tracing.graph.random_calls import (
    forked_state,
    manual_seed,
    random_state,
    set_random_state,
)
from calque.upstream import torch_c

_OF_PYTHON = "random randint randrange uniform choice choices sample shuffle gauss normalvariate"
_OF_NUMPY = "rand randn randint random uniform normal choice shuffle permutation"


def hold_randomness(patches: Patches) -> None:
    """Record `torch.manual_seed`; refuse what a graph would not repeat."""
    patches.hold(torch, "manual_seed", _seeded)
    patches.hold(torch, "Generator", _generator)
    for module in (torch, torch.random):  # fork_rng uses the second
        patches.hold(module, "get_rng_state", functools.partial(_read_state, ""))
        patches.hold(module, "set_rng_state", functools.partial(_set_state, ""))
        for name in ("initial_seed", "seed"):
            patches.hold(module, name, functools.partial(_refused_seed, name))
    kind = torch_c.get_privateuse1_backend_name()
    device = getattr(torch, kind, None)
    if hasattr(device, "set_rng_state"):
        patches.hold(device, "get_rng_state", functools.partial(_read_state, kind))
        patches.hold(device, "set_rng_state", functools.partial(_set_state, kind))
    for module, names in ((random, _OF_PYTHON), (np.random, _OF_NUMPY)):
        for name in names.split():
            what = (
                f"{module.__name__}.{name} draws a number while tracing, which the graph would "
                "not repeat"
            )
            patches.hold(module, name, _refused(what))


def _seeded(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def seed(seed: object) -> Any:
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
            if hasattr(tracer, "make_generator"):  # a recording uses a real generator
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


def _tracer_of_state() -> Any:
    """Returns the tracer if the program reads or sets the random state, directly or by
    `torch.random.fork_rng`; None if other code does.
    """
    trace, file = current_trace(), sys._getframe(2).f_code.co_filename
    if trace is None or trace.tracer.contexts is None:
        return None
    return trace.tracer if file == torch.random.__file__ or not is_engine(file) else None


def _read_state(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_state(device: object = kind) -> Any:
        tracer = _tracer_of_state()
        given = (kind, device) if kind else ()
        if tracer is None:
            return original(*given[1:])
        is_forked = sys._getframe(1).f_code.co_filename == torch.random.__file__
        asked = forked_state if is_forked else random_state
        return tracer.create_proxy("call_function", asked, given, {})

    return get_state


def _set_state(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def set_state(new_state: object, device: object = kind) -> None:
        tracer = _tracer_of_state()
        given = (kind, device) if kind else ()
        if tracer is None:
            return original(new_state, *given[1:])
        tracer.create_proxy("call_function", set_random_state, (new_state, *given), {})

    return set_state


def _refused_seed(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def ask() -> Any:
        tracer = tracer_of_program()
        if tracer is None:
            return original()
        why = f"torch.{name} reads the random state, which a graph would not do again"
        if hasattr(tracer, "make_generator"):  # a recording may continue
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
