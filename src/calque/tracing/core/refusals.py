"""The error messages for what a trace cannot capture."""

from typing import Any, NoReturn

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.core.origins import NodeOrigin, origin_here, program_frame

_EXAMPLES = "Pass example inputs, calque.trace(f, x), so that shapes are known."
_GRADIENT = "Use torch.autograd.grad(result, inputs), which is captured."
_ADDRESS = (
    "has its address read, which differs in each run",
    "Compare the tensors, or x.storage_offset().",
)
_REASONS = {
    "bool": (
        "is used as a condition",
        "Use torch.where(condition, a, b) or torch.cond(condition, f, g, inputs). " + _EXAMPLES,
    ),
    "int()": ("is turned into a number", "Keep it a tensor, or pass the number as an argument."),
    "float()": ("is turned into a number", "Keep it a tensor, or pass the number as an argument."),
    "complex()": ("is turned into a number", "Keep it a tensor, or pass it as an argument."),
    "index": (
        "is used as a Python integer (in range(), as a list index or in a shape)",
        _EXAMPLES + " To index a tensor, use the tensor itself.",
    ),
    "in": ("is searched with `in`", "Use (x == value).any(), and torch.where on the result."),
    "str()": (
        "is printed or formatted, which would show the trace instead of values, and only once",
        "Print its shape, or use repr() to look at the proxy while tracing.",
    ),
    "repr()": (
        "is converted to text, which would show the trace instead of values",
        "Compare the tensor itself, or convert it to text outside.",
    ),
    "pickle": ("is pickled", "Return it, and pickle the result."),
    "numpy": (
        "is passed to numpy, which a graph cannot hold",
        (
            "Use the torch function of the same name, or make the function that uses numpy a leaf: "
            "calque.tracing.wrap."
        ),
    ),
    "grad": ("has its .grad read", _GRADIENT),
    "grad_fn": ("has its .grad_fn read", _GRADIENT),
    "backward": ("is differentiated into .grad", _GRADIENT),
    "register_hook": (
        "gets a hook, which a graph cannot hold",
        "Write a torch.autograd.Function that does it in its backward.",
    ),
    "data_ptr": _ADDRESS,
    "_cdata": _ADDRESS,
    "_version": (
        "has its version read, which counts the writes of each run",
        'Note the writes in a variable of your own, or trace with tracer="record".',
    ),
    "is_set_to": (
        "is asked whether it shares memory, which a trace does not have",
        'Trace with tracer="record".',
    ),
    "is_shared": (
        "is asked whether other processes share its memory, which a trace does not have",
        'Trace with tracer="record".',
    ),
    "is_inference": (
        "is asked whether it was made in inference mode, which differs between runs",
        'Ask torch.is_inference_mode_enabled(), or trace with tracer="record".',
    ),
    "output_nr": (
        "has its place in the graph of autograd read, which differs between runs",
        'Trace with tracer="record".',
    ),
    "storage_type": (
        "has the class of its storage read, which a trace does not have",
        "Ask for x.dtype.",
    ),
    "iterate": (
        "is iterated, but its length is not known",
        _EXAMPLES + " Or use x.unbind() and index the result.",
    ),
    "len": (
        "is passed to len(), but its length is not known",
        _EXAMPLES + " Or use x.shape[0] in arithmetic.",
    ),
}


_VALUES = 'It depends on values. calque.trace(..., tracer="record") follows one run that has them.'


def refuse(proxy: Any, question: str) -> NoReturn:
    """Raise the error for an operation that needs a tensor's value.

    Args:
        proxy: the proxy that was used.
        question: a key of the table above.

    Raises:
        TraceError: always.
    """
    why, remedy = _REASONS[question]
    if getattr(proxy.tracer, "examples", None) is not None:
        remedy = remedy.replace(_EXAMPLES, _VALUES)
    refuse_because(proxy.tracer, f"{describe(proxy)} {why}", remedy)


def refuse_because(tracer: Any, what: str, remedy: str) -> NoReturn:
    """Raise the error for a step of the program, at its line.

    The tracer remembers the error: a program that catches it would behave differently than in a
    real run.

    Raises:
        TraceError: always.
    """
    tracer.refused_at = current_step()
    tracer.refusal = SymbolicTraceError(f"{here(tracer)}{what}.\n{remedy}")
    raise tracer.refusal


def current_step() -> tuple[int, int] | None:
    """Returns an identifier of the instruction that runs in the program."""
    frame = program_frame(2)
    return None if frame is None else (id(frame), frame.f_lasti)


def here(tracer: Any) -> str:
    """Returns the running line of the program, as the prefix of a message."""
    origin = origin_here(tracer.scope.module_path, 0)
    return f"{origin}: " if origin is not None else ""


def describe(proxy: Any) -> str:
    """Returns a description of a value for errors: its operation, dtype, shape and line."""
    node = proxy.node
    if node.op == "placeholder":
        name = f"the argument {node.target}"
    else:
        target = node.target
        name = f"the result of {target if isinstance(target, str) else target.__name__}"
    value = node.meta.get("val")
    if hasattr(value, "dtype"):
        name += f" ({str(value.dtype).removeprefix('torch.')}{list(value.shape)})"
    origin: NodeOrigin | None = node.meta.get("origin")
    if origin is not None and node.op != "placeholder":
        name += f", made at line {origin.line},"
    return name
