"""The results of one trace of a function."""

from typing import Any

from calque.jitting.assumed_values import Assumed
from calque.jitting.effects import Effects
from calque.jitting.guards import CallGuard, Guard
from calque.jitting.implicit_arguments import Implicit
from calque.jitting.modes import ambient
from calque.jitting.python_effects import Rebound
from calque.program.gradients.carrying import Attached
from calque.program.gradients.differentiable import Backward
from calque.program.lifting import Input
from calque.program.results import Argument, Description, Existing
from calque.program.sinks import Sink
from calque.program.value_checks import Checks

Target = Existing | Argument


class Recording:
    """The results of one trace.

    Attributes:
        jaxpr: the closed jaxpr; its inputs are `inputs`, its outputs the new values for `sinks`,
            then the arrays that the descriptions name, then the gradients of `backward`.
        inputs: where each input comes from.
        implicit: what is handed to the program behind the arguments of each call: tensors whose
            place is the same at each call, and not they.
        sinks: where what the function wrote goes.
        results: the leaves of the result, with `spec` as their container.
        shells: the objects among these leaves, whose tensors `results` has in their stead.
        gradients: the tensors whose `.grad` is another tensor afterwards, and which.
        exchanged: places whose tensors others exchange between calls, so that they are inputs.
        rebound: places that hold other tensors afterwards, and which.
        effects: what else the function changes in Python.
        unrepeatable: why the program serves this call only, in words; empty if it serves others.
        rewritten: tensors from outside that have another history afterwards, and which.
        passed: arguments that gradients reach inside the function, and which; whether their graph
            is to be kept.
        flags: tensors whose `requires_grad` is another one afterwards, and which.
        survivors: cells made in the trace that outlive it without being any of these.
        count: how many leaves a call's arguments have.
        sharing: how the implicit ones share storages.
        pinned: arguments that are also part of the state.
        stored: arguments whose whole storage is the input, and how they must lie in it.
        optimizers: those that stepped.
        checks: the checks of values that were asked for, and of those that were assumed.
        guards: what must hold for the program to serve a call.
        call_guards: what must hold of its arguments, and of these and the state together.
    """

    jaxpr: Any
    inputs: list[Input]
    sinks: list[Sink]
    results: list[Any]
    gradients: list[tuple[Target, Description | None]]
    guards: list[Guard]
    effects: Effects
    survivors: list[Any]
    handles: dict[Any, Any]
    optimizers: list[Any]
    sharing: Any
    pinned: Any
    stored: Any
    spec: Any
    shells: Any
    seeded: Any
    count: int
    draws: int
    n_outputs: int

    def __init__(self) -> None:
        self.ambient: tuple[Any, ...] = ambient()
        self.implicit: list[Implicit] = []
        self.flags: list[tuple[Target, bool]] = []
        self.rewritten: list[Attached] = []
        self.passed: list[tuple[Argument, Description, bool]] = []
        self.exchanged: tuple[tuple[Any, Any], ...] = ()
        self.rebound: list[tuple[Rebound, list[Description]]] = []
        self.modes: dict[str, Any] = {}
        self.unrepeatable: list[str] = []
        self.backward: Backward | None = None
        self.checks: Checks | Assumed = Checks()
        self.call_guards: list[CallGuard] = []
