"""Facts about an operator in addition to its rule, in the same file.

A fact is given to `op` with the rule, or to `facts` where the operator has none of its own: one
that PyTorch composes of others. Facts in PyTorch's schemas and tags (which arguments are written,
what is a view, what draws random numbers) are read from there instead.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

Layout = Literal[
    "row_major", "copied", "elementwise", "each", "images", "large_images", "convolution", "meta",
    "meta_if_strided", "transform", "sequence", "positions", "attention", "attention_of_the_cpu",
]  # fmt: skip
"""How the results lie in memory.

row_major: one after another, though PyTorch's tags say elementwise.
copied: like a copy of the first argument, with a few elements changed.
elementwise: in the order of the arguments' axes; so are all that PyTorch tags `pointwise`.
each: results of lists, elementwise, each from the tensors at its place.
images: `channels_last` where the first argument is. large_images: likewise, but row-major where it
is that too, of a single pixel. convolution: `channels_last` where any argument is.
meta: as PyTorch's Meta kernel lays them. meta_if_strided: likewise, where an argument is not
row-major. The others are those of Fourier transforms, recurrent layers, `nonzero` and attention.
"""

Writes = Literal[
    "exact_dtype", "computes_first", "apart", "changes", "fills", "no_booleans", "cast_type_error",
    "any_shape", "says_dtype", "truth",
]  # fmt: skip
"""The demands on a tensor that an in-place or `out=` form writes.

exact_dtype: an `out=` has the dtype of the result.
computes_first: whether the written memory is read too does not matter.
apart: no memory is read that is written, not even element by element.
changes: as `apart`, but for the first argument, of which the result is a changed copy.
fills: elements that share memory may be written: they get the same value, or any.
no_booleans: an `out=` of booleans is refused. cast_type_error: one of a lower kind, by TypeError.
any_shape: an `out=` of as many elements keeps its shape.
says_dtype: the operator computes in the dtype of `out=`, if the call asks for none.
truth: an `out=` is of booleans or bytes.
"""

Autocast = Literal["lower", "float32", "widest"]
"""The dtype that autocast runs an operator in: the low precision asked for, float32, or the widest
of its arguments."""


class Refusal(NamedTuple):
    """Dtypes that PyTorch's CPU kernels refuse but JAX would compute.

    Half precision is not among them: that a CPU lacks a kernel for it makes no argument bad.

    Attributes:
        says: the name of PyTorch's kernel, or its whole message.
        categories: the categories (see `promotion`) that are refused.
        pair: whether the common dtype of the first two tensors counts, or that of the first.
        kernel: whether `says` names a kernel or is a message.
    """

    says: str
    categories: tuple[int, ...]
    pair: bool = False
    kernel: bool = True


def no_kernel(name: str, *categories: int, pair: bool = False) -> Refusal:
    """PyTorch's kernel of a name does not take some categories of dtypes."""
    return Refusal(name, categories, pair)


def senseless(message: str, *categories: int) -> Refusal:
    """PyTorch says that some categories of dtypes make no sense."""
    return Refusal(message, categories, kernel=False)


Condition = Callable[..., None]
"""Called with the arguments of a rule, arrays for tensors, before it is traced; raises what PyTorch
raises for their shapes, dtypes and options. Rules check by themselves what they need to know
anyway."""

ValueCheck = Callable[..., None]
"""Called with the arguments of a call, a `tensor_argument.TensorArgument` for each tensor; raises
what PyTorch raises for their values."""


class Known(TypedDict, total=False):
    """The facts of one operator.

    Attributes:
        layout: how the results lie in memory; row-major, or elementwise, if not told.
        laid_by: the places of the arguments that the layout asks, in the order in which PyTorch's
            kernel does; all, as they come, if not told.
        columns: the results that are column-major, whatever the arguments are.
        writes: what its `out=` form demands of what it writes. That no memory is read which is
            written, "apart" or "changes", holds of the in-place form too.
        writes_in_place: what its in-place form demands.
        autocast: the dtype under autocast; that of its arguments if not told.
        unsafe_autocast: why it is refused under autocast.
        refuses: dtypes that PyTorch refuses.
        condition: a check of shapes, dtypes and options.
        values: a check of the values of tensors, made where somebody looks at them; of the in-place
            and `out=` forms too.
        numbers: a check of numbers alone, which holds in a trace as well; likewise.
        in_place: the name of the in-place form, where that is not the rule's with an underscore.
        moved: the place of an operand that is laid out anew where it is a view: XLA's fast products
            for CPUs do not take a transposed left operand.
        host_indices: whether index tensors of the CPU are taken.
        compares_numbers: whether PyTorch's Meta kernel compares numbers that a trace does not know.
        reports: the name of PyTorch's function in what `check_errors=True` raises; the last result
            tells.
        node: whether the operator, which PyTorch composes of others, is one node of torch's graph.
        without_gradient: likewise, but for calls without a gradient only, and of them for those
            whose arguments (`TensorArgument` for tensors) it says yes to.
        destination: gives, for the arguments of an eager call, the placement that its result asks
            for: arrays on other devices go there first.
        like: the operator that draws as this one does, for the shape and dtype of a tensor.
    """

    layout: Layout
    laid_by: tuple[int, ...]
    columns: tuple[int, ...]
    writes: tuple[Writes, ...]
    writes_in_place: tuple[Writes, ...]
    autocast: Autocast
    unsafe_autocast: str
    refuses: Refusal | tuple[Refusal, ...]
    condition: Condition
    values: ValueCheck
    numbers: ValueCheck
    in_place: str
    moved: int
    host_indices: bool
    compares_numbers: bool
    reports: str
    node: bool
    without_gradient: Callable[..., bool]
    destination: Callable[..., Any]
    like: str


FACTS: dict[str, Known] = {}
"""By operator, as `aten::add.Tensor`. A rule that takes another's place leaves the facts."""


def facts(*names: str, **known: Unpack[Known]) -> None:
    """Declare facts about operators.

    >>> from calque.ops.table.facts import facts
    >>> facts("conv1d conv2d conv3d", autocast="lower")                      # doctest: +SKIP

    Args:
        *names: the operators, each as in `op`; several words in one string are several operators.
        **known: see `Known`.

    Raises:
        TypeError: a fact of that name does not exist, or an operator has a different one.
    """
    strange = known.keys() - Known.__annotations__.keys()
    if strange:
        raise TypeError(f"operators have no fact called {', '.join(sorted(strange))}")
    for name in " ".join(names).split() if known else ():
        own = FACTS.setdefault(canonical(name), {})
        again = {fact for fact in known if own.get(fact, known[fact]) != known[fact]}
        if again:
            raise TypeError(f"{name} has other facts already: {', '.join(sorted(again))}")
        own.update(known)


def fact_of(name: str) -> Known:
    """Returns the facts of an operator; empty if none were declared."""
    return FACTS.get(canonical(name), {})


def fact_of_form(name: str) -> Known:
    """Returns the facts of an operator or, of an in-place one, those of its functional form."""
    base, dot, overload = canonical(name).partition(".")
    return FACTS.get(f"{base.removesuffix('_')}{dot}{overload}", {})


def operators_with(fact: str) -> dict[str, Any]:
    """Returns the operators with a fact, and its value, in the order of declaration."""
    return {name: known[fact] for name, known in FACTS.items() if fact in known}  # type: ignore[literal-required]


def canonical(name: str) -> str:
    """`add.Tensor` -> `aten::add.Tensor`; `aten::relu.default` -> `aten::relu`."""
    name = name if "::" in name else f"aten::{name}"
    return name.removesuffix(".default")
