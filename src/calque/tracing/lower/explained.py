"""Errors that PyTorch raises while operators are found, in words of ours."""

import re
from typing import Any

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.lower.nested import nested
from calque.tracing.lower.overlaps import overlapping
from calque.upstream.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

_OF_A_WAY = re.compile("(cond_|while_loop)[a-z_]* might be (modifying|aliasing) the input")


def explained(error: Exception) -> Exception:
    """The error for what went wrong; the given one, where it says so itself."""
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return depends_on_values(str(error.func))
    if isinstance(error, RuntimeError) and "that has internal overlap" in str(error):
        return overlapping("a call")  # of a layer, which no node of the graph shows
    if isinstance(error, RuntimeError) and "its data is not allocated yet" in str(error):
        return depends_on_values("a call")  # of `torch.tensor`, for tensors among its numbers
    if isinstance(error, RuntimeError) and "NestedTensorImpl doesn't support" in str(error):
        return nested()
    if isinstance(error, RuntimeError) and _OF_A_WAY.match(str(error)):
        return SymbolicTraceError(
            "one branch of a choice writes to a tensor from outside it, or returns one, which the "
            "operator for a choice cannot do.\nReturn a new tensor instead, or use the graph as it "
            "is, without lowering."
        )
    if isinstance(error, UnsupportedOperatorException):
        return SymbolicTraceError(
            f"{error.func} has no abstract values, so that its operators cannot be found.\n"
            "Use the graph as it is, without lowering."
        )
    return error


def depends_on_values(what: str) -> SymbolicTraceError:
    """The error for a call whose result has to be known."""
    return SymbolicTraceError(
        f"what {what} gives depends on values of tensors, which are not known while operators are "
        "found.\nKeep it a tensor of a fixed shape, or use the graph as it is, without lowering."
    )


def reads_a_number(what: str) -> SymbolicTraceError:
    """The error for `x.item()`, where a graph of calls computes with what it gives."""
    return SymbolicTraceError(
        f"{what} reads a number, which is not known while operators are found.\nKeep it a "
        'tensor, or use the graph as it is, without lowering. Of a recording, graph("aten") and '
        "graph(follow=False) check the number instead, and can be lowered."
    )


def sets_seeds() -> SymbolicTraceError:
    """The error for `torch.manual_seed` and `torch.random.fork_rng`."""
    return SymbolicTraceError(
        "operators neither set the seed or the state of random numbers nor ask for it.\nDo that "
        "outside of what is lowered, or use the graph as it is, without lowering."
    )


def makes_generators() -> SymbolicTraceError:
    """The error for `torch.Generator()`."""
    return SymbolicTraceError(
        "a torch.Generator is made within the program, and operators draw from none of their own.\n"
        "Make it outside of the program, use torch.manual_seed, or use the graph as it is, without "
        "lowering."
    )


def two_for_one(names: str) -> SymbolicTraceError:
    """The error for one tensor that is given twice."""
    return SymbolicTraceError(
        f"{names} are one tensor, and a graph of operators takes them for two.\n"
        "Lower a program that takes it once, such as lambda x: model(x, x)."
    )


def computes_gradients(what: Any) -> SymbolicTraceError:
    """The error for `loss.backward()`."""
    return SymbolicTraceError(
        f"{what} computes gradients within the program, and operators know of none.\n"
        "Use the graph as it is, or write the gradient with torch.func.grad."
    )


def has_hooks(what: Any) -> SymbolicTraceError:
    """The error for a module with hooks of the backward pass."""
    return SymbolicTraceError(
        f"{what} has hooks of the backward pass, which its operators do not have.\n"
        "Lower within torch.no_grad() for a graph that is not differentiated."
    )


def changed_geometry() -> SymbolicTraceError:
    """The error for `x.t_()` of what the program is given."""
    return SymbolicTraceError(
        "the program changes the shape of what it is given, in place, which operators cannot.\n"
        "Take a view instead (x.t()), or use the graph as it is, without lowering."
    )


def of_torchscript() -> SymbolicTraceError:
    """The error for a module of TorchScript."""
    return SymbolicTraceError(
        "a module of TorchScript is one call, whose operators cannot be found.\n"
        "Use the module that it was made from, or the graph as it is, without lowering."
    )
