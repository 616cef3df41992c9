"""Programs with numbers in variables beside code that could tell them apart, or seems to (see
`numbers_in_variables`).
"""

import copy
import datetime
import json
import math
from types import SimpleNamespace

from tests.jitting.numbers_in_variables import needing, training


def is_compiling():
    """As several functions of transformers."""
    try:
        import torch

        return torch.compiler.is_compiling()
    except Exception:
        return False


def checked(output):
    """As `ModelOutput.__post_init__` of transformers."""
    try:
        items = iter(output)
        iterates = True
    except TypeError:
        items, iterates = (), False
    return iterates and any(item is None for item in items)


def known(kind):
    try:
        return isinstance(kind, int) and callable(kind)
    except TypeError:
        try:
            import collections.abc as classes

            return issubclass(kind, classes.Callable)
        except TypeError:
            return None


def handlers_that_meet_no_number(s, x):
    loss = s.step(x)
    if is_compiling() is None or checked([loss]) or checked(0) or known(int):
        raise ValueError
    for group in s.optimizer.param_groups:
        group["lr"] = 0.1 * 0.5 ** (s.n / 10) / math.sqrt(1 + s.n)
    return loss


training(handlers_that_meet_no_number, traces=3)


def attributes_that_become_relevant_meanwhile(s, x):
    for group in s.optimizer.param_groups:
        group["lr"] = 0.1 / (1 + s.n)
    loss = s.step(x)
    s.log = [len(vars(one)) for one in (copy.copy(s.model), SimpleNamespace(a=1))]
    return loss


training(attributes_that_become_relevant_meanwhile, traces=3)


def seconds(s):
    return datetime.timedelta(seconds=s.n).total_seconds()


class Clock:
    def __init__(self, s):
        self.s = s

    @property
    def late(self):
        return seconds(self.s)

    def __iter__(self):
        return iter((seconds(self.s),))

    def __getattr__(self, name):
        if name == "missing":
            return seconds(self.s)
        raise AttributeError(name)


def a_number_in_a_function_that_a_handler_calls(s, x):
    s.n += 1
    try:
        return x * seconds(s)
    except TypeError:
        return x


def a_number_in_a_property(s, x):
    s.n += 1
    clock, found = Clock(s), -1.0
    try:
        found = clock.late
    except TypeError:
        pass
    return x * found


def a_number_in_an_attribute_that_is_computed(s, x):
    s.n += 1
    clock, found = Clock(s), -1.0
    try:
        found = clock.missing
    except TypeError:
        pass
    return x * found


def a_number_in_an_iterator(s, x):
    s.n += 1
    clock, found = Clock(s), None
    try:
        found = iter(clock)
    except TypeError:
        found = (-1.0,)
    return x * next(iter(found))


def a_number_in_a_callback(s, x):
    s.n += 1
    late = lambda: seconds(s)
    found = -1.0
    try:
        found = late()
    except TypeError:
        pass
    return x * found


def a_number_in_an_inner_try(s, x):
    s.n += 1
    try:
        try:
            length = len(json.dumps(s.n))
        except ValueError:
            length = 0
    except TypeError:
        length = -1
    return x * length


def a_number_in_a_module_of_python(s, x):
    s.n += 1
    step = s.n
    try:
        length = len(json.dumps(step))
    except TypeError:
        length = -1
    return x * length


for run in (
    a_number_in_a_function_that_a_handler_calls,
    a_number_in_a_property,
    a_number_in_an_attribute_that_is_computed,
    a_number_in_an_iterator,
    a_number_in_a_callback,
    a_number_in_an_inner_try,
    a_number_in_a_module_of_python,
):
    needing(run)
