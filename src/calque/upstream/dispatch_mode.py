"""Dispatch modes, and other code that `torch.compile` is kept out of."""

from types import CodeType
from typing import Any

from torch import _C
from torch.utils._python_dispatch import TorchDispatchMode

_eval_frame = _C._dynamo.eval_frame


def keep_dynamo_out(code: CodeType) -> None:
    """Let `torch.compile` leave a function alone, and what it calls.

    As `torch.compiler.disable`, but nothing is wrapped and dynamo is not loaded, which takes
    seconds.
    """
    skip = _eval_frame._FrameAction.SKIP
    _eval_frame.set_code_exec_strategy(code, _eval_frame._FrameExecStrategy(skip, skip))


class DispatchMode(TorchDispatchMode):
    """As `TorchDispatchMode`, but for its handlers dynamo is not loaded at the first call."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # that is done here

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__torch_dispatch__" in cls.__dict__:
            keep_dynamo_out(cls.__dict__["__torch_dispatch__"].__code__)
