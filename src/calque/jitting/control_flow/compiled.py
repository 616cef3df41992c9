"""Functions of `torch.compile` that a jitted function calls: they are part of its program.

PyTorch's compiler does not run under the mode of a trace. It would mark the function as one to skip
from then on, also outside, and with `fullgraph=True` it would raise.
"""

from collections.abc import Callable
from typing import Any


def inline(eval_frame: Any, is_in_program: Callable[[], bool]) -> None:
    """Keep PyTorch's compiler out of programs.

    Args:
        eval_frame: the module `torch._dynamo.eval_frame`.
        is_in_program: whether the program of a function is being traced.
    """
    choose = eval_frame._callback_from_stance
    count = eval_frame.set_fullgraph_compiled_frame_count

    def no_compiler(callback: Any) -> Any:
        return None if is_in_program() else choose(callback)

    def no_count(frames: int) -> int:
        return 0 if frames == 0 and is_in_program() else count(frames)

    eval_frame._callback_from_stance = no_compiler
    eval_frame.set_fullgraph_compiled_frame_count = no_count
