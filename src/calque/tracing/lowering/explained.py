"""Translates errors that PyTorch raises while lowering."""

import re
from collections.abc import Callable
from typing import Any

import torch

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph.purity import OF_RANDOM_STATE
from calque.tracing.graph.random_calls import make_generator, of_generator
from calque.tracing.lowering.nested import nested
from calque.tracing.lowering.overlaps import overlapping
from calque.upstream.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

_OF_CUSTOM_OPERATOR = re.compile(r"custom \(non-ATen\) operator .*annotations: ([\w.:]+)\(")
_WITHOUT_GRADIENT = re.compile(
    r"derivative for (aten::\w+) is not implemented|^(\w+) does not support automatic diff"
)
_INTO_COMPLEX = re.compile(r"^(\w+_scatter) does not support .* outputs with complex dtype")
_OF_A_WAY = re.compile(
    "(cond_|while_loop)[a-z_]* might be (modifying|aliasing) the input"
    "|The cond HigherOrderOperator does not currently support training with in-place"
)


_TO_PARAMETER = "the program writes to a parameter, or to another leaf of autograd's graph"
_TO_LEAF = re.compile("a (view of a )?leaf Variable that requires grad is being used in an in")


def explained(error: Exception) -> Exception:
    """Returns the error to raise; the original one if it is clear enough."""
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        if "_local_scalar_dense" in str(error.func):
            return _number_read()
        return depends_on_values(str(error.func))
    if isinstance(error, RuntimeError) and "that has internal overlap" in str(error):
        return overlapping("a call")  # inside a layer, so no node shows it
    if isinstance(error, RuntimeError) and "its data is not allocated yet" in str(error):
        return depends_on_values("a call")  # `torch.tensor` with tensors among its numbers
    if isinstance(error, RuntimeError) and "NestedTensorImpl doesn't support" in str(error):
        return nested()
    if isinstance(error, RuntimeError) and _TO_LEAF.search(str(error)):
        return writes_to_parameter()
    if isinstance(error, RuntimeError) and _OF_A_WAY.match(str(error)):
        return writes_in_a_branch()
    if isinstance(error, RuntimeError) and (found := _OF_CUSTOM_OPERATOR.search(str(error))):
        return SymbolicTraceError(
            f"{found[1]} is an operator of torch.library that writes to its arguments, for which "
            "PyTorch knows no form without writes.\nHave it return the new tensor, lower with "
            "functional=False, or use the graph as it is, without lowering."
        )
    if isinstance(error, RuntimeError) and (found := _INTO_COMPLEX.search(str(error))):
        return SymbolicTraceError(
            "the program writes into a part of a complex tensor while gradients are recorded, and "
            f"PyTorch has no gradient of {found[1]}, the form of that without writes.\nPut the "
            "tensor together instead (torch.cat, torch.nn.functional.pad), lower within "
            "torch.no_grad(), or use the graph as it is, without lowering."
        )
    if isinstance(error, RuntimeError) and (found := _WITHOUT_GRADIENT.search(str(error))):
        return SymbolicTraceError(
            f"the program computes a gradient through {found[1] or found[2]}, an operator of the "
            "form without writes, which has none for these tensors.\nCompute the gradient outside "
            "the lowered program, or use the graph as it is, without lowering."
        )
    if isinstance(error, UnsupportedOperatorException):
        return SymbolicTraceError(
            f"{error.func} cannot run on tensors without data, so it cannot be lowered.\n"
            "Use the graph as it is, without lowering."
        )
    return error


def writes_to_parameter() -> SymbolicTraceError:
    """Returns the error for a write to a parameter or another leaf of autograd's graph."""
    return SymbolicTraceError(
        f"{_TO_PARAMETER}, which operators can do only where no gradients are recorded.\nLower "
        "within torch.no_grad() and run the graph within it, or use the graph as it is, without "
        "lowering."
    )


def is_write_to_leaf(error: Exception) -> bool:
    """Whether an error says that a leaf of autograd's graph is written to."""
    return str(error).startswith(_TO_PARAMETER)


def writes_in_a_branch() -> SymbolicTraceError:
    """Returns the error for a branch that changes or returns a tensor from outside it."""
    return SymbolicTraceError(
        "a branch or a loop body writes to a tensor from outside, or returns one, which "
        "torch.cond and torch.while_loop cannot do.\nReturn a new tensor instead, or use the "
        "graph as it is, without lowering."
    )


def _number_read() -> SymbolicTraceError:
    return SymbolicTraceError(
        "a tensor is read as a number (`.item()`, an index without dimensions in a layer, a flag "
        "as an index), which depends on values of tensors that are not known while lowering.\nGive "
        "an index of integers a dimension (`x[i.reshape(1)]` reads one row), choose with "
        "torch.where instead of a flag, keep a number a tensor, or use the graph as it is, without "
        "lowering."
    )


def depends_on_values(what: str) -> SymbolicTraceError:
    """The error for a call whose result has to be known while lowering."""
    return SymbolicTraceError(
        f"the result of {what} depends on values of tensors, which are not known while "
        "lowering.\nKeep it a tensor of a fixed shape, or use the graph as it is, without "
        "lowering."
    )


def reads_a_number(what: str) -> SymbolicTraceError:
    """The error for `x.item()` in a graph of calls that computes with the result."""
    return SymbolicTraceError(
        f"{what} reads a number, which is not known while lowering.\nKeep it a tensor, or use "
        'the graph as it is, without lowering. For a recording, graph("aten") and '
        "graph(follow=False) check the number instead, and can be lowered."
    )


def counts_writes() -> SymbolicTraceError:
    """The error for a program that reads how often a tensor has been written to."""
    return SymbolicTraceError(
        "the program reads the version of a tensor, but a graph of operators does not write in "
        "place.\nUse the graph as it is, without lowering."
    )


def sets_seeds() -> SymbolicTraceError:
    """The error for `torch.manual_seed` and `torch.random.fork_rng`."""
    return SymbolicTraceError(
        "operators cannot read or set the seed or the state of random numbers.\nDo that outside "
        "the lowered program, or use the graph as it is, without lowering."
    )


def makes_generators() -> SymbolicTraceError:
    """The error for `torch.Generator()`."""
    return SymbolicTraceError(
        "the program creates a torch.Generator, which cannot be lowered.\nCreate it outside the "
        "program, use torch.manual_seed, or use the graph as it is, without lowering."
    )


def two_for_one(names: str) -> SymbolicTraceError:
    """The error for one tensor that is passed twice."""
    return SymbolicTraceError(
        f"{names} are the same tensor, but a graph of operators needs different ones.\nLower a "
        "program that takes it once, such as lambda x: model(x, x)."
    )


def computes_gradients(what: object) -> SymbolicTraceError:
    """The error for `loss.backward()`."""
    return SymbolicTraceError(
        f"{what} computes gradients within the program, which cannot be lowered.\nUse the graph "
        "as it is, or torch.autograd.grad, which returns the gradients."
    )


def computes_in_branch(place: object) -> SymbolicTraceError:
    """The error for `torch.autograd.grad` in an `if` on a tensor."""
    return SymbolicTraceError(
        f"{place}: torch.autograd.grad is called in a branch or a loop that depends on a tensor, "
        "which cannot be lowered.\nCompute the gradient outside and choose with torch.where, or "
        "use the graph as it is, without lowering."
    )


def differentiates_branch() -> SymbolicTraceError:
    """The error for `torch.autograd.grad(..., create_graph=True)` through an `if` on a tensor."""
    return SymbolicTraceError(
        "torch.autograd.grad(..., create_graph=True) goes through a branch or a loop that depends "
        "on a tensor, whose gradient could not be differentiated again.\nChoose with torch.where, "
        "leave out create_graph, or use the graph as it is, without lowering."
    )


def marks_argument(name: object) -> SymbolicTraceError:
    """The error for `x.requires_grad_()` on a member, or on an argument that was written to."""
    return SymbolicTraceError(
        f"the program has {name}, which it does not create, require a gradient, which cannot be "
        "lowered.\nCall requires_grad_ before, or on a tensor of its own: "
        "x = x.detach().requires_grad_()."
    )


def writes_to_leaf(what: str) -> SymbolicTraceError:
    """The error for a write to a tensor after `requires_grad_`."""
    return SymbolicTraceError(
        f"{what} writes to a tensor on which the program has called requires_grad_, so the "
        "gradient of the operators would include that write.\nCreate a new tensor instead, or "
        "use the graph as it is, without lowering."
    )


def changes_container(place: str = "") -> SymbolicTraceError:
    """The error for `arguments["mask"] = mask`."""
    return SymbolicTraceError(
        f"{place}the program changes a container or an object among its arguments, which cannot "
        "be lowered.\nReturn the new tensor, or write into the old one."
    )


def has_hooks(what: object) -> SymbolicTraceError:
    """The error for a module with hooks of the backward pass."""
    return SymbolicTraceError(
        f"{what} has backward hooks, which its operators would not run.\nLower within "
        "torch.no_grad() if the graph is not differentiated."
    )


def changed_geometry() -> SymbolicTraceError:
    """The error for `x.t_()` on an argument of the program."""
    return SymbolicTraceError(
        "the program changes the shape of an argument in place, which cannot be lowered.\nUse a "
        "view instead (x.t()), or use the graph as it is, without lowering."
    )


def of_torchscript() -> SymbolicTraceError:
    """The error for a TorchScript module."""
    return SymbolicTraceError(
        "a TorchScript module is one opaque call, which cannot be lowered.\nUse the original "
        "module, or the graph as it is, without lowering."
    )


REFUSED: dict[Any, Callable[[], SymbolicTraceError]] = {
    **dict.fromkeys(OF_RANDOM_STATE, sets_seeds),
    **dict.fromkeys((make_generator, of_generator), makes_generators),
    torch.autograd.backward: lambda: computes_gradients("torch.autograd.backward"),
}
"""Functions that cannot be lowered."""
