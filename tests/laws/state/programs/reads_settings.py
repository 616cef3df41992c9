"""L1: settings of PyTorch that are kept in C, and of the whole of Python's logging."""

import logging
import types
from collections.abc import Iterator
from typing import Any

import torch

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("reads", "jit rows")
Seen = Iterator[Any]
MATMUL = torch.backends.cuda.matmul


@program(states=2)
def setting_of_a_backends_object(case: Case) -> Seen:
    case.undo(setattr, MATMUL, "allow_tf32", MATMUL.allow_tf32)
    f = case.fn(lambda x: x * (2 if torch.backends.cuda.matmul.allow_tf32 else 1))
    for MATMUL.allow_tf32 in (False, True, True, False):
        yield f(case.x)


@program(states=2)
def setting_of_an_object_that_the_program_holds(case: Case) -> Seen:
    name = "allow_fp16_reduced_precision_reduction"
    case.undo(setattr, MATMUL, name, getattr(MATMUL, name))
    s = types.SimpleNamespace(settings=MATMUL)

    def reduced():
        return s.settings.allow_fp16_reduced_precision_reduction

    f = case.fn(lambda x: x * (2 if reduced() else 1) + MATMUL.allow_tf32)
    for value in (False, True, True, False):
        setattr(MATMUL, name, value)
        yield f(case.x)


@program(states=2)
def kernels_of_attention_switched(case: Case) -> Seen:
    switch = torch.backends.cuda.enable_math_sdp
    case.undo(switch, torch.backends.cuda.math_sdp_enabled())
    f = case.fn(lambda x: x * (2 if torch.backends.cuda.math_sdp_enabled() else 1))
    for value in (True, False, False, True):
        switch(value)
        yield f(case.x)


@program(states=2)
def seed_that_was_set(case: Case) -> Seen:
    f = case.fn(lambda x: x * torch.initial_seed())
    for seed in (3, 4, 4, 3):
        torch.manual_seed(seed)
        yield f(case.x)


@program(states=2)
def logging_disabled_for_all(case: Case) -> Seen:
    logger = logging.getLogger("tests.laws.disabled")
    logger.setLevel(logging.DEBUG)
    case.undo(logging.disable, logging.NOTSET)

    def f(x):
        debugs = logger.isEnabledFor(logging.DEBUG)
        logging.disable(logging.ERROR)
        return x * (2 if debugs else 1)

    f = case.fn(f)
    for _ in range(2):
        yield f(case.x), logging.root.manager.disable
        yield f(case.x), logging.root.manager.disable
        logging.disable(logging.NOTSET)
