"""Excludes dispatch modes and other code from `torch.compile`."""

from types import CodeType
from typing import Any

from torch import _C
from torch.utils._python_dispatch import TorchDispatchMode

_eval_frame = _C._dynamo.eval_frame
_SKIP = _eval_frame._FrameAction.SKIP
_SKIPPED = _eval_frame._FrameExecStrategy(_SKIP, _SKIP)


def keep_dynamo_out(code: CodeType) -> None:
    """Keep `torch.compile` from compiling a function and its callees.

    Like `torch.compiler.disable`, but it does not wrap the function, and does not import Dynamo,
    which takes seconds.
    """
    _eval_frame.set_code_exec_strategy(code, _SKIPPED)


class DispatchMode(TorchDispatchMode):
    """Like `TorchDispatchMode`, but the first call does not import Dynamo."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # `keep_dynamo_out` does that

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__torch_dispatch__" in cls.__dict__:
            keep_dynamo_out(cls.__dict__["__torch_dispatch__"].__code__)
