"""The results of one trace of a function."""

from typing import Any

import torch

from calque.jitting.assumed_values import Assumed
from calque.jitting.effects import Effects, Rebound
from calque.jitting.guards import CallGuard, Guard
from calque.jitting.implicit_arguments import Implicit
from calque.jitting.modes import ambient
from calque.program.gradients.differentiable import Backward
from calque.program.gradients.escaping_tensors import Attached
from calque.program.lifting import Input
from calque.program.results import Description, Existing, OwnTensor
from calque.program.sinks import Sink
from calque.program.value_checks import Checks
from calque.state.rows import Row

Target = Existing | OwnTensor


class TraceRecording:
    """The results of one trace.

    Attributes:
        jaxpr: the closed jaxpr; its inputs are `inputs`, its outputs the new values for `sinks`,
            the arrays to which descriptions refer, and the gradients of `backward`.
        inputs: the inputs, with their sources.
        implicit: the implicit arguments, which follow the arguments of each call: tensors in
            variables whose tensor may differ in each call.
        sinks: the targets of the function's writes.
        results: the leaves of the result, with `spec` as their structure.
        gradients: the tensors whose `.grad` changes, with the new gradients.
        exchanged: variables whose tensors are replaced between calls, so that they are inputs.
        copied: the variables of counts that the function only copies into what it appends.
        numbers: the variables whose numbers are read in each call, in the rows of an earlier trace.
        variables: the same, in the rows of this trace.
        changed_numbers: the numbers that each call assigns in place of others, as (row, key,
            number).
        formulas: compute the numbers that each call stores or returns.
        rebound: variables to which the function assigns new tensors, with these.
        effects: the other changes of Python state.
        unrepeatable: the reasons why the program serves only this call; empty if it serves others.
        rewritten: tensors from outside whose autograd history changes, with the new one.
        passed: arguments that gradients reach in the function, with these gradients, and whether
            to keep the graph.
        flags: tensors whose `requires_grad` changes, with the new flag.
        survivors: other cells created in the trace that outlive it.
        left: the containers of libraries that may hold them.
        count: the number of leaves in a call's arguments.
        others: the tensors that implicit arguments must not be, by id; None if it does not matter.
        sharing: how the implicit arguments share storages, and which are one tensor.
        pinned: arguments that are also part of the state.
        stored: arguments whose whole storage is the input, with their required position in it.
        optimizers: the optimizers that stepped.
        checks: the requested checks of values, and those of assumed values.
        guards: conditions for the program to serve a call.
        call_guards: conditions on the arguments, and on arguments and state together.
        kept_ids: the one on the ids of arguments; None if the function does not ask for them.
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
    seeded: Any
    count: int
    draws: int
    n_outputs: int

    def __init__(self) -> None:
        self.ambient: tuple[Any, ...] = ambient()
        self.implicit: list[Implicit] = []
        self.left: list[Row] = []
        self.others: dict[int, torch.Tensor] | None = None
        self.flags: list[tuple[Target, bool]] = []
        self.rewritten: list[Attached] = []
        self.passed: list[tuple[OwnTensor, Description, bool]] = []
        self.exchanged: tuple[tuple[Any, Any], ...] = ()
        self.copied: tuple[tuple[Any, Any], ...] = ()
        self.numbers: tuple[tuple[Any, Any], ...] = ()
        self.variables: tuple[tuple[Any, Any], ...] = ()
        self.formulas: list[Any] = []
        self.changed_numbers: list[tuple[Any, Any, Any]] = []
        self.rebound: list[tuple[Rebound, list[Description]]] = []
        self.modes: dict[str, Any] = {}
        self.unrepeatable: list[str] = []
        self.backward: Backward | None = None
        self.checks: Checks | Assumed = Checks()
        self.call_guards: list[CallGuard] = []
        self.kept_ids: CallGuard | None = None

    def abandon(self) -> None:
        """Remove the tensors that libraries keep, because no call gives them values."""
        for row in self.left:
            row.restore()
        self.left.clear()
