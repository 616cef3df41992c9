"""Facts about an operator in addition to its rule, in the same file.

Facts are declared in `op` with the rule, or by `facts` for an operator without a rule, which
PyTorch composes from other operators. What PyTorch's schemas and tags say (which arguments are
written, what is a view, what draws random numbers) is read from them instead.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

Layout = Literal[
    "row_major", "copied", "elementwise", "reals", "each", "images", "large_images", "any_images",
    "volumes", "meta", "meta_if_strided", "convolution", "transform", "sequence", "positions",
    "slices", "attention", "attention_of_the_cpu",
]  # fmt: skip
"""The layout of the results in memory.

row_major: row-major, although PyTorch's tags say elementwise.
copied: that of a copy of the first argument, with a few elements changed.
elementwise: in the order of the arguments' axes, like all that PyTorch tags `pointwise`.
reals: likewise for real numbers, but row-major for complex ones.
each: for lists: each result is elementwise, in the order of the tensors at its position.
images: `channels_last` if the first argument is. large_images: likewise, but row-major if the
argument is also row-major, such as a single pixel. any_images: `channels_last` if any argument is.
volumes: like images, also for a volume without a batch axis. meta: that of PyTorch's Meta kernel.
meta_if_strided: likewise, if an argument is not row-major. The rest are those of convolutions,
Fourier transforms, recurrent layers, `nonzero`, slices selected along an axis, and attention.
"""

Writes = Literal[
    "exact_dtype", "computes_first", "apart", "changes", "fills", "no_booleans", "cast_type_error",
    "any_shape", "says_dtype", "truth", "any_real", "no_complex",
    "copies", "sizes",
]  # fmt: skip
"""The requirements on a tensor that an in-place or `out=` form writes.

exact_dtype: an `out=` has the dtype of the result.
computes_first: the written memory may also be read.
apart: the written memory must not be read, not even element by element.
changes: like `apart`, except for the first argument, of which the result is a changed copy: it may
be the written tensor.
fills: elements that share memory may be written, because they get the same or arbitrary values.
no_booleans: a boolean `out=` raises an error. cast_type_error: a lower kind raises TypeError.
any_shape: an `out=` with as many elements keeps its shape.
says_dtype: the operator computes in the dtype of `out=` if the call has no `dtype=`.
truth: `out=` must be boolean or of bytes.
any_real: an `out=` may have any dtype, even a lower kind, but not a complex one.
copies: an `out=` that is resized becomes row-major, whatever the layout of the result.
sizes: of a complex argument, an `out=` may have its dtype, or any that can hold a float.
no_complex: an in-place form does not take complex numbers.
"""

Autocast = Literal["lower", "float32", "widest"]
"""The dtype in which autocast runs an operator: the requested low precision, float32, or the widest
dtype of its arguments.
"""


class Refusal(NamedTuple):
    """Dtypes that PyTorch's CPU kernels refuse but JAX would compute.

    Half precision is valid even if the CPU has no kernel for it, except where LAPACK computes.

    Attributes:
        says: the name of PyTorch's kernel, or its whole message.
        categories: the refused categories (see `promotion`).
        pair: whether the common dtype of the first two tensors counts, instead of the first's.
        kernel: whether `says` is the name of a kernel instead of a message.
    """

    says: str
    categories: tuple[int, ...]
    pair: bool = False
    kernel: bool = True


def no_kernel(name: str, *categories: int, pair: bool = False) -> Refusal:
    """Returns a `Refusal` of dtypes for which PyTorch's kernel is not implemented."""
    return Refusal(name, categories, pair)


def senseless(message: str, *categories: int) -> Refusal:
    """Returns a `Refusal` of dtypes that PyTorch refuses with a message of its own."""
    return Refusal(message, categories, kernel=False)


Condition = Callable[..., None]
"""Called with the arguments of a rule, with arrays for tensors, before it is traced; raises
PyTorch's errors for their shapes, dtypes and options. Rules themselves check what they need to know
anyway.
"""

ValueCheck = Callable[..., None]
"""Called with the arguments of a call, with a `tensor_argument.TensorArgument` for each tensor;
raises PyTorch's errors for their values.
"""


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
        values: a check of tensors' values, made where values are checked; it applies to the
            in-place and `out=` forms too.
        numbers: like `values`, but a check of Python numbers only, which is made in a trace too.
        in_place: the name of the in-place form, if it is not the rule's name with an underscore.
        moved: the position of an operand that is made contiguous if it is a view: XLA's fast matrix
            products for CPUs do not take a transposed left operand.
        host_indices: whether index tensors may be on the CPU.
        compares_numbers: whether PyTorch's Meta kernel compares numbers, which a trace may not
            know.
        reports: the name of PyTorch's function in the error that `check_errors=True` raises, if the
            last result reports a failure.
        node: whether the operator, which PyTorch composes from others, is one node of autograd's
            graph.
        without_gradient: like `node`, but only for calls without a gradient for whose arguments
            (`TensorArgument` for tensors) it returns True.
        also_with_gradient: returns True if such a call may be one node, too.
        destination: returns, for the arguments of an eager call, the placement of its result, to
            which arrays on other devices are moved first.
        like: the operator that draws the same numbers, given the shape and dtype of a tensor.
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
    also_with_gradient: Callable[..., bool]
    destination: Callable[..., Any]
    like: str


FACTS: dict[str, Known] = {}
"""By operator, such as `aten::add.Tensor`. A rule that replaces another one keeps its facts."""


def facts(*names: str, **known: Unpack[Known]) -> None:
    """Declare facts about operators.

    >>> from calque.ops.table.facts import facts
    >>> facts("conv1d conv2d conv3d", autocast="lower")                      # doctest: +SKIP

    Args:
        *names: the operators, each as in `op`; several words in one string are several operators.
        **known: see `Known`.

    Raises:
        TypeError: there is no fact of that name, or an operator has a different one already.
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
    """Returns the facts of an operator; for an in-place operator, those of its functional form."""
    base, dot, overload = canonical(name).partition(".")
    return FACTS.get(f"{base.removesuffix('_')}{dot}{overload}", {})


def operators_with(fact: str) -> dict[str, Any]:
    """Returns the operators that have a fact, with its value, in the order of declaration."""
    return {name: known[fact] for name, known in FACTS.items() if fact in known}  # type: ignore[literal-required]


def canonical(name: str) -> str:
    """`add.Tensor` -> `aten::add.Tensor`; `aten::relu.default` -> `aten::relu`."""
    name = name if "::" in name else f"aten::{name}"
    return name.removesuffix(".default")
