"""Run one program on one device, and write down the losses that it differentiates.

    python -m tests.programs.child MODE REPORT SCRIPT [ARGUMENTS...]

MODE is "cpu", "eager" or "compile"; REPORT a file to write. It runs in a process of its own.
"""

import importlib.util
import json
import runpy
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from tests.programs.alike import same_random_numbers
from tests.programs.stand_ins import Digits, few_fakes

MOST_STEPS = 40


class _Enough(BaseException):
    """Ends a program that has made its steps."""


class Steps:
    """The losses that `backward` was called on, and when."""

    def __init__(self, most: int = MOST_STEPS) -> None:
        self.most = most
        self.losses: list[torch.Tensor] = []
        self.times: list[float] = []

    @contextmanager
    def watched(self) -> Any:
        """Within, every `Tensor.backward` is written down."""
        plain = torch.Tensor.backward
        within = False  # set while a function mode calls this function again

        def backward(loss: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal within
            if within:
                return plain(loss, *args, **kwargs)
            within = True
            try:
                plain(loss, *args, **kwargs)
            finally:
                within = False
            self.losses.append(loss.detach().float().mean())
            self.times.append(time.perf_counter())
            if len(self.losses) == self.most:
                raise _Enough

        with mock.patch.object(torch.Tensor, "backward", torch.compiler.disable(backward)):
            yield

    def report(self) -> dict[str, Any]:
        """The losses, and the seconds between one and the next."""
        seconds = [b - a for a, b in zip(self.times, self.times[1:])]
        return {"losses": [loss.item() for loss in self.losses], "seconds": seconds}


@contextmanager
def the_cpu_as_accelerator() -> Any:
    """A program that asks for the accelerator gets the CPU, and takes the same branches with it."""
    cpu = torch.device("cpu")
    make = torch.utils.data.DataLoader.__init__

    def without_pins(loader: Any, *args: Any, **kwargs: Any) -> None:
        make(loader, *args, **{**kwargs, "pin_memory": False})

    with (
        mock.patch.object(torch.utils.data.DataLoader, "__init__", without_pins),
        mock.patch.object(torch.accelerator, "is_available", return_value=True),
        mock.patch.object(torch.accelerator, "current_accelerator", return_value=cpu),
        mock.patch.object(torch.accelerator, "device_count", return_value=1),
    ):
        yield


@contextmanager
def models_compiled(backend: str) -> Any:
    """Each module that a program calls is compiled, the modules in it with it."""
    plain = nn.Module.__call__
    inside = False

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        within = inside or torch.compiler.is_compiling()
        if within or next(module.parameters(), None) is None:
            return plain(module, *args, **kwargs)
        if module._compiled_call_impl is None:
            module.compile(backend=backend)
        inside = True
        try:
            return plain(module, *args, **kwargs)
        finally:
            inside = False

    with mock.patch.object(nn.Module, "__call__", call):
        yield


@contextmanager
def data_made_here() -> Any:
    """torchvision's data sets without a download."""
    if importlib.util.find_spec("torchvision") is None:
        yield
        return
    from tests.conformance.torchvision_stub import make_importable

    make_importable()
    from torchvision import datasets  # pyright: ignore[reportMissingImports]

    fakes = few_fakes(datasets.FakeData)
    with (
        mock.patch.object(datasets, "MNIST", Digits),
        mock.patch.object(datasets, "FakeData", fakes),
    ):
        yield


def run(mode: str, script: str, arguments: list[str], names_no_device: bool) -> dict[str, Any]:
    """Run the script; gives its losses, and whether it came to its end."""
    steps = Steps()
    sys.argv = [script, *arguments]
    sys.path[:0] = [str(Path(script).parent), "."]
    with ExitStack() as stack:
        stack.enter_context(data_made_here())
        if mode == "cpu":
            stack.enter_context(the_cpu_as_accelerator())
        else:
            import calque  # noqa: F401
            from calque_cli.as_cuda import standing_in

            if names_no_device:
                stack.enter_context(standing_in(default=True))
        if mode == "compile":
            stack.enter_context(models_compiled("calque"))
        stack.enter_context(same_random_numbers())
        stack.enter_context(steps.watched())
        try:
            runpy.run_path(script, run_name="__main__")
            ended = True
        except _Enough:
            ended = False
    return {**steps.report(), "ended": ended}


if __name__ == "__main__":
    mode, report, no_device, script, *arguments = sys.argv[1:]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    outcome = run(mode, script, arguments, bool(int(no_device)))
    Path(report).write_text(json.dumps(outcome))
