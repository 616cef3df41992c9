"""L1: what surrounds a function: globals, modules, the environment, modes of PyTorch and Python."""

import contextlib
import contextvars
import decimal
import math
import os
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.laws.state import settings
from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("reads", "jit rows")
Seen = Iterator[Any]

GAIN = 2.0
LAYERS: list[Any] = []


@program(states=3)
def global_number(case: Case) -> Seen:
    global GAIN
    f = case.fn(lambda x: x * GAIN)
    for GAIN in (2.0, 3.0, 5.0, 2.0):  # noqa: B007
        yield f(case.x)


def _scale_by_global(x):
    return x * GAIN


@program(states=3)
def global_number_read_by_a_helper(case: Case) -> Seen:
    global GAIN
    f = case.fn(lambda x: _scale_by_global(x))
    for GAIN in (2.0, 3.0, 5.0, 2.0):  # noqa: B007
        yield f(case.x)


def _helper(x):
    return x * 2


@program(states=2)
def global_function_replaced(case: Case) -> Seen:
    own = sys.modules[__name__]
    case.patch(own, "_helper", _helper)
    double = own._helper
    f = case.fn(lambda x: _helper(x))
    for own._helper in (double, torch.neg, torch.neg, double):
        yield f(case.x)


@program(states=3)
def global_list_of_layers(case: Case) -> Seen:
    LAYERS[:] = [torch.relu]

    def f(x):
        for layer in LAYERS:
            x = layer(x)
        return x

    f = case.fn(f)
    yield f(case.x)
    LAYERS.append(torch.neg)
    yield f(case.x)
    LAYERS.insert(0, torch.neg)
    yield f(case.x)


@program(states=2)
def global_that_appears(case: Case) -> Seen:
    own = globals()
    own.pop("APPEARS", None)
    case.undo(lambda: own.pop("APPEARS", None))
    f = case.fn(lambda x: x * (APPEARS if "APPEARS" in globals() else 1.0))
    yield f(case.x)
    own["APPEARS"] = 4.0
    yield f(case.x)
    yield f(case.x)
    del own["APPEARS"]
    yield f(case.x)


@program(states=3)
def attribute_of_a_module_of_the_user(case: Case) -> Seen:
    case.patch(settings, "scale", 2.0)
    f = case.fn(lambda x: x * settings.scale)
    for settings.scale in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def function_of_a_module_that_reads_its_globals(case: Case) -> Seen:
    case.patch(settings, "scale", 2.0)
    f = case.fn(lambda x: settings.scaled(x))
    for settings.scale in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def object_of_a_module(case: Case) -> Seen:
    case.undo(settings.options.__dict__.update, dict(vars(settings.options)))
    f = case.fn(lambda x: x * settings.options.gain)
    for settings.options.gain in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=2)
def module_imported_within_the_function(case: Case) -> Seen:
    case.patch(settings, "scale", 2.0)

    def f(x):
        from tests.laws.state import settings as own

        return x * own.scale

    f = case.fn(f)
    for settings.scale in (2.0, 3.0, 3.0, 2.0):
        yield f(case.x)


@program(states=2)
def module_made_at_run_time(case: Case) -> Seen:
    made = types.ModuleType("made_settings")
    exec("gain = 2.0\ndef scaled(x): return x * gain", made.__dict__)
    f = case.fn(lambda x: made.scaled(x))
    for made.gain in (2.0, 3.0, 3.0, 2.0):
        yield f(case.x)


@program(states=2)
def function_of_pytorch_patched(case: Case) -> Seen:
    case.patch(F, "silu", F.silu)
    own = F.silu
    f = case.fn(lambda x: F.silu(x))
    for F.silu in (own, torch.relu, torch.relu, own):
        yield f(-case.x)


@program(states=2)
def constant_of_a_library_patched(case: Case) -> Seen:
    case.patch(math, "tau", math.tau)
    own = math.tau
    f = case.fn(lambda x: x * math.tau)
    for math.tau in (own, 1.0, 1.0, own):
        yield f(case.x)


@program(states=4)
def method_of_a_library_class_patched(case: Case) -> Seen:
    case.patch(nn.ReLU, "forward", nn.ReLU.forward)
    own, m = nn.ReLU.forward, nn.ReLU()
    f = case.fn(lambda x: m(x))
    for forward in (own, lambda self, x: x * 3, None, own):
        nn.ReLU.forward = forward or nn.ReLU.forward
        yield f(-case.x)


@program(states=3)
def variable_of_the_environment(case: Case) -> Seen:
    f = case.fn(lambda x: x * float(os.environ.get("LAWS_GAIN", "1")))
    yield f(case.x)
    os.environ["LAWS_GAIN"] = "3"
    yield f(case.x)
    os.environ["LAWS_GAIN"] = "5"
    yield f(case.x)
    del os.environ["LAWS_GAIN"]
    yield f(case.x)


@program(states=2)
def variable_read_by_getenv(case: Case) -> Seen:
    f = case.fn(lambda x: -x if os.getenv("LAWS_FLAG") else x)
    for value in ("", "1", "1", ""):
        os.environ["LAWS_FLAG"] = value
        yield f(case.x)


@program(states=3)
def context_variable(case: Case) -> Seen:
    gain: contextvars.ContextVar[float] = contextvars.ContextVar("gain", default=2.0)
    f = case.fn(lambda x: x * gain.get())
    yield f(case.x)
    gain.set(3.0)
    yield f(case.x)
    token = gain.set(5.0)
    yield f(case.x)
    gain.reset(token)
    yield f(case.x)


@program(states=2)
def run_within_another_context(case: Case) -> Seen:
    gain: contextvars.ContextVar[float] = contextvars.ContextVar("gain2", default=2.0)
    other = contextvars.copy_context()
    other.run(gain.set, 7.0)
    f = case.fn(lambda x: x * gain.get())
    yield f(case.x)
    yield other.run(f, case.x)
    yield f(case.x)
    yield other.run(f, case.x)


@program(states=4)
def precision_of_decimals(case: Case) -> Seen:
    f = case.fn(lambda x: x * float(decimal.Decimal(1) / decimal.Decimal(3)))
    yield f(case.x)
    with decimal.localcontext() as context:
        context.prec = 1
        yield f(1000 * case.x)
        yield f(1000 * case.x)
    yield f(case.x)


@program(states=2)
def default_dtype(case: Case) -> Seen:
    f = case.fn(lambda x: x + torch.ones(3, device=x.device))
    for dtype in (torch.float32, torch.float64, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        yield f(case.x.float())


@program(states=2)
def default_dtype_of_a_literal(case: Case) -> Seen:
    f = case.fn(lambda x: x.new_ones(3, dtype=torch.get_default_dtype()) * 0.5)
    for dtype in (torch.float32, torch.float64, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        yield f(case.x.float())


@program(states=2)
def default_device(case: Case) -> Seen:
    f = case.fn(lambda x: (x + 1, torch.zeros(2).device.type == "meta"))
    case.undo(torch.set_default_device, None)
    for device in (case.device, "meta", "meta", case.device):
        torch.set_default_device(device)
        yield f(torch.ones(3, device=case.device))
    torch.set_default_device(None)


class _Doubling(TorchFunctionMode):
    gain = 2.0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        return made * self.gain if func is torch.sin else made


@program(states=3)
def a_mode_of_torch_functions(case: Case) -> Seen:
    f = case.fn(lambda x: torch.sin(x))
    mode = _Doubling()
    yield f(case.x)
    with mode:
        yield f(case.x)
        mode.gain = 3.0
        yield f(case.x)
    yield f(case.x)


@program(states=2)
def autocast(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x))
    yield f(case.x)
    with torch.autocast(case.device, dtype=torch.bfloat16):
        yield f(case.x)
        yield f(case.x)
    yield f(case.x)


@program(states=3)
def gradient_modes(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: m(x) * (2.0 if torch.is_grad_enabled() else 3.0))
    yield f(case.x)
    with torch.no_grad():
        yield f(case.x)
    with torch.inference_mode():
        yield f(case.x).sum().item()
    yield f(case.x)


@program(states=2)
def flags_of_deterministic_algorithms(case: Case) -> Seen:
    f = case.fn(lambda x: x * (2 if torch.are_deterministic_algorithms_enabled() else 3))
    for on in (False, True, True, False):
        torch.use_deterministic_algorithms(on)
        yield f(case.x)


@program(states=2)
def precision_of_products(case: Case) -> Seen:
    f = case.fn(lambda x: x * len(torch.get_float32_matmul_precision()))
    case.undo(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    for precision in ("highest", "high", "high", "highest"):
        torch.set_float32_matmul_precision(precision)
        yield f(case.x)


@program(states=2)
def flags_of_backends(case: Case) -> Seen:
    f = case.fn(lambda x: x if torch.backends.mkldnn.enabled else -x)
    for enabled in (True, False, False, True):
        # If PyTorch's test utilities are imported, the flags can only be set in this way.
        with torch.backends.mkldnn.flags(enabled=enabled):
            yield f(case.x)


@program(states=2)
def filters_of_warnings(case: Case) -> Seen:
    class Careful(UserWarning):
        pass

    def f(x):
        try:
            warnings.warn("careful", Careful, stacklevel=1)
        except Careful:
            return -x
        return x

    f = case.fn(f)
    for action in ("ignore", "error", "error", "ignore"):
        with warnings.catch_warnings():
            warnings.simplefilter(action, Careful)
            yield f(case.x)


@program(states=2)
def error_state_of_numpy(case: Case) -> Seen:
    f = case.fn(lambda x: -x if np.geterr()["divide"] == "raise" else x)
    for divide in ("warn", "raise", "raise", "warn"):
        with np.errstate(divide=divide):
            yield f(case.x)


@program(each_call=True)
def search_path_of_modules(case: Case) -> Seen:
    case.undo(sys.path.__delitem__, slice(len(sys.path), None))
    f = case.fn(lambda x: x * ("/laws/of/state" in sys.path) + ("laws_state" in sys.modules))
    yield f(case.x)
    sys.path.append("/laws/of/state")
    yield f(case.x)
    case.undo(sys.modules.pop, "laws_state", None)
    sys.modules["laws_state"] = types.ModuleType("laws_state")
    yield f(case.x)


class _Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        return made * 2 if func is torch.ops.aten.tanh.default else made


@program
def dispatch_mode_around_a_call(case: Case) -> Seen:
    f = case.fn(lambda x: x.tanh() + 1)
    for i in range(6):
        x = case.x + i
        with _Doubling() if i in (3, 5) else contextlib.nullcontext():
            yield f(x)


@program
def detection_of_anomalies_around_a_call(case: Case) -> Seen:
    f = case.fn(lambda x: (x * 0).sqrt().sum())
    for i in range(5):
        x = (case.x + i).requires_grad_()
        with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(i in (2, 4)):
            warnings.simplefilter("ignore", UserWarning)
            try:
                f(x).backward()
            except RuntimeError as error:
                yield str(error), x.grad
            else:
                yield x.grad


@program(states=2)
def event_that_others_set(case: Case) -> Seen:
    stopped = threading.Event()
    f = case.fn(lambda x: x * 0 if stopped.is_set() else x)
    for i in range(5):
        if i == 2:
            stopped.set()
        yield f(case.x)


@program(each_call=True)
def event_set_by_the_function(case: Case) -> Seen:
    started = threading.Event()

    def f(x):
        was = started.is_set()
        started.set()
        return x * (2 if was else 3)

    f = case.fn(f)
    for i in range(5):
        if i == 3:
            started.clear()
        yield f(case.x), started.is_set()


@program(states=2)
def switch_interval(case: Case) -> Seen:
    case.undo(sys.setswitchinterval, sys.getswitchinterval())
    f = case.fn(lambda x: x * (sys.getswitchinterval() * 1000))
    for i in range(4):
        sys.setswitchinterval(0.005 if i < 2 else 0.05)
        yield f(case.x)
