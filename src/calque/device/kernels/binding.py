"""Binds the op table to PyTorch's dispatcher.

One functional rule implements the operator itself, its in-place form, its `out=` form and, if it
changes arguments, the write-back. Operators without a rule go to `fallback`.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, lru_cache, partial
from itertools import repeat
from types import CodeType
from typing import Any

import torch
from jax import Array
from torch.autograd.graph import increment_version

from calque.device.kernels import fast_path
from calque.device.kernels.call import Runner
from calque.device.kernels.checked import checked
from calque.device.kernels.fallback import fall_back
from calque.device.kernels.lists import apart, one_by_one
from calque.device.kernels.meta_check import Outline
from calque.device.kernels.out_aliasing import Written, write_out
from calque.device.memory import strides
from calque.device.memory.cell import write
from calque.device.runtime.dtypes import to_torch
from calque.ops.table.facts import canonical, operators_with
from calque.ops.table.registry import RULES, Rule
from calque.upstream import torch_c
from calque.upstream.dispatch_mode import keep_dynamo_out
from calque.upstream.torch_internals import OpOverload

Kernel = Callable[..., Any]
_kept_out: dict[int, CodeType] = {}
_COMPOSITE_IMPLICIT = "CompositeImplicitAutograd"

_FACTORY = frozenset(("dtype", "layout", "device", "pin_memory", "generator"))


@cache
def schema_of(name: str) -> torch_c.FunctionSchema:
    """Returns the schema of `namespace::name.overload`."""
    base, _, overload = name.partition(".")
    return torch_c.get_schema(base, overload)


@cache
def operator_names() -> tuple[str, ...]:
    """Returns the names of all ATen operators, such as `aten::add.Tensor`."""
    names = torch_c.dispatch_get_all_op_names()
    return tuple(name for name in names if name.startswith("aten::"))


def overload_of(name: str) -> OpOverload:
    """Returns the operator object of `namespace::name.overload`."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def is_written(argument: torch_c.Argument) -> bool:
    """Returns True if an operator writes to an argument."""
    return argument.alias_info is not None and argument.alias_info.is_write


def traced_parameters(rule: Rule) -> frozenset[str]:
    """Returns the parameters in which a Python number represents a tensor or a `Scalar`."""
    kinds = ("Tensor", "number")
    arguments = schema_of(rule.name).arguments
    return frozenset(a.name for a in arguments if any(kind in str(a.type) for kind in kinds))


def runner(rule: Rule, in_place: str | None = None, place: int = 0) -> Runner:
    """Returns the function that calls the rule of an operator, or of a given in-place operator.

    `place` is the position of the in-place operator's `self` among the rule's arguments.
    """
    if in_place is None:
        return Runner(rule, traced_parameters(rule), None, Outline(overload_of(rule.name)))
    outline = None if place else Outline(overload_of(in_place))
    return Runner(rule, traced_parameters(rule), place, outline)


def functional(rule: Rule) -> Kernel:
    """Returns the kernel of an operator that returns new tensors."""
    if rule.random or rule.check is not None or strides.always(rule.name):
        return when_called(lambda: runner(rule).general)
    return fast_path.kernel_of(lambda: runner(rule))


def mutating(rule: Rule) -> Kernel:
    """Returns the kernel of an operator that returns new tensors and changes some
    of its arguments.
    """
    run: Runner | None = None
    positions = _positions(rule)
    returned = len(schema_of(rule.name).returns)
    updated = any(r.alias_info is not None for r in schema_of(rule.name).returns)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal run
        if run is None:
            run = runner(rule)
        fresh = _without_updates(rule, args, kwargs, run(args, kwargs))
        fresh = run.wrapped(fresh, args, kwargs)
        if returned == 0:
            return None
        if updated:
            return args[positions[0]]
        return fresh[0] if returned == 1 else fresh

    return kernel


@cache
def _positions(rule: Rule) -> list[int]:
    """Returns the positions of the arguments that a rule changes."""
    names = [a.name for a in schema_of(rule.name).arguments]
    return [names.index(name) for name in rule.mutates]


def _without_updates(
    rule: Rule, args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[Any]
) -> tuple[Any, ...]:
    """Write the new values of the arguments that a rule changes, and return the other results."""
    count = len(results) - len(rule.mutates)
    at = zip(rule.mutates, _positions(rule))
    targets = [args[i] if i < len(args) else kwargs.get(name) for name, i in at]
    _write_back(targets, results[count:])
    return tuple(results[:count])


def _write_back(targets: Any, values: Any) -> None:
    """Write new values to tensors, lists of tensors or None; nothing is written if one fails."""
    pairs = list(_pairs(targets, values))
    for target, value in pairs if all(t.numel() for t, _ in pairs) else ():
        if target.shape != value.shape:
            raise RuntimeError(
                f"output with shape {list(target.shape)} doesn't match the shape of the result "
                f"{list(value.shape)}"
            )
    for target, value in pairs:
        if target.shape != value.shape:
            target.resize_(value.shape)  # state that is filled for the first time
        write(target, value)


def _pairs(targets: Any, values: Any) -> Iterator[tuple[Any, Any]]:
    for target, value in zip(targets, values, strict=True):
        if isinstance(target, list | tuple):
            yield from _pairs(target, value)
        elif target is not None and value is not None:
            yield target, value


def in_place(name: str, rule: Rule) -> Kernel:
    """Returns the kernel of `op_`: the functional rule, written to its first argument."""
    return when_called(lambda: _in_place(name, rule))


def _in_place(name: str, rule: Rule) -> Kernel:
    place = _place_of_self(rule)  # polygamma has an argument before it
    run = runner(rule, name, place)
    written = Written(name, rule)

    def general(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        written.check_memory(self, args)
        args = (*args[:place], self, *args[place:])
        result = run(args, kwargs)
        if rule.mutates:
            (result,) = _without_updates(rule, args, kwargs, result)
        write(self, result)
        return self

    def of_lists(self: list[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        for i, tensor in enumerate(self):
            if tensor.is_cpu and len(self) > 1:
                return one_by_one(overload_of(name), self, args, kwargs)
            others = [a[i] for a in args if isinstance(a, list | tuple) and len(a) > i]
            written.check_memory(tensor, others)
        for one in apart(self, args):
            _write_back(one[:1], [run(one, kwargs)])
        # PyTorch leaves the version to the operators that its own kernel calls.
        increment_version([tensor for tensor in self if not tensor.is_inference()])

    if not schema_of(name).returns:
        return of_lists
    if place or rule.mutates or run.guarded:
        return general
    return fast_path.in_place(run, name, general, written.apart)


def when_called(make: Callable[[], Kernel]) -> Kernel:
    """Returns a kernel that is created at its first call, because most are never called."""
    made: Kernel | None = None

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        if made is None:
            made = make()
        return made(*args, **kwargs)

    return kernel


def _place_of_self(rule: Rule) -> int:
    return rule.parameters.index("self") if "self" in rule.parameters else 0


def out_form(name: str) -> Kernel:
    """Returns the kernel of an `out=` overload: a functional rule of the same arguments,
    written to `out`.
    """
    return when_called(lambda: _out_form(name))


def _out_form(name: str) -> Kernel:
    rule = functional_of(name)
    if rule is None:
        return partial(fall_back, overload_of(name))
    schema = schema_of(name)
    outs = [a.name for a in schema.arguments if a.is_out]
    run, written = runner(rule), Written(name, rule)
    dtype_kwargs = _dtype_of_out(rule, written, any(a.name == "dtype" for a in schema.arguments))
    # A form that PyTorch generates writes by a copy, which resizes to row-major.
    copied = torch.Tag.generated in overload_of(name).tags or written.copies

    def general(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(o) for o in outs if o in kwargs]
        count = len(args) - (len(outs) - len(targets))
        targets = [*args[count:], *targets]
        kwargs |= dtype_kwargs(targets[0], kwargs)
        dtype = kwargs.get("dtype")
        if dtype is not None and dtype != targets[0].dtype:
            raise RuntimeError(
                f"Expected out tensor to have dtype {dtype}, but got {targets[0].dtype} instead"
            )
        results = run(args[:count], kwargs)
        results = (results,) if isinstance(results, Array) else results
        if written.any_shape and targets[0].numel() == results[0].size:
            results = (results[0].reshape(tuple(targets[0].shape)),)
        if len(targets) == 1 and isinstance(targets[0], list | tuple):
            targets = list(targets[0])
            if len(targets) != len(results):
                raise RuntimeError(f"{name} has {len(results)} results, but {len(targets)} tensors")
        inputs = (*args[:count], *kwargs.values())
        for target, result in zip(targets, results, strict=False):
            written.check_memory(target, inputs, result.size)
            written.check_dtype(to_torch(result.dtype), target.dtype, inputs)
        if rule.mutates:
            results = _without_updates(rule, args[:count], kwargs, results)
        laid = None
        if not copied and any(
            tuple(t.shape) != r.shape for t, r in zip(targets, results, strict=True)
        ):
            laid = run.laid(results, args[:count], kwargs)
        for target, result, stride in zip(targets, results, laid or repeat(None), strict=False):
            write_out(target, result, stride)
        if not schema.returns:
            return None
        return targets[0] if len(targets) == 1 else tuple(targets)

    single = outs == ["out"] and [str(r.type) for r in schema.returns] == ["Tensor"]
    if rule.mutates or run.guarded or not single:
        return general
    return fast_path.out_form(run, name, general, written.apart, dtype_kwargs)


def _dtype_of_out(
    rule: Rule, written: Written, takes_dtype: bool
) -> Callable[[torch.Tensor, dict[str, Any]], dict[str, Any]]:
    """Returns the dtype that `out=` implies for a rule with a parameter `dtype`.

    An operator without a parameter `dtype` accumulates in the dtype of `out`, and so do some
    others.
    """

    def dtype_kwargs(out: torch.Tensor, kwargs: dict[str, Any]) -> dict[str, Any]:
        if takes_dtype:
            asks = written.says_dtype and kwargs.get("dtype") is None
        else:
            asks = "dtype" in rule.parameters
        return {"dtype": out.dtype} if asks else {}

    return dtype_kwargs


@cache
def renamed() -> dict[str, str]:
    """Returns the rule of each in-place operator that is not named after its functional form."""
    return {canonical(form): name for name, form in operators_with("in_place").items()}


@cache
def functional_of(name: str) -> Rule | None:
    """Returns the rule of the same operator whose arguments are those of an in-place
    or out overload.
    """
    schema = schema_of(name)
    base, _, overload = name.partition(".")
    base = base[:-1] if base.endswith("_") and not base.endswith("__") else base
    exact = RULES.get(renamed().get(name, f"{base}.{overload}" if overload else base))
    if (
        exact is None
        or name == exact.name
        or any(is_written(a) for a in schema_of(exact.name).arguments)
    ):
        exact = None
    elif name in renamed() or _first_type(schema_of(exact.name)) == _first_type(schema):
        return exact
    outs = [a.name for a in schema.arguments if a.is_out]
    wanted = _typed(schema, _FACTORY | {*outs})
    # `pow.Scalar` takes a number and a tensor, `pow_.Scalar` a tensor and a number.
    for candidate in _by_base().get(base, ()):
        if _typed(schema_of(candidate.name), _FACTORY) == wanted:
            return candidate
    return exact


def _first_type(schema: torch_c.FunctionSchema) -> str:
    return str(schema.arguments[0].type) if schema.arguments else ""


def _typed(schema: torch_c.FunctionSchema, without: Collection[str]) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in schema.arguments if a.name not in without]


def forget_derived() -> None:
    """Discard derived kernels, because a rule in the table has changed."""
    functional_of.cache_clear()
    _by_base.cache_clear()


@lru_cache(maxsize=1)
def _by_base() -> dict[str, list[Rule]]:
    table: dict[str, list[Rule]] = {}
    for rule in RULES.values():
        table.setdefault(rule.name.partition(".")[0], []).append(rule)
    return table


def derived(name: str) -> Kernel | None:
    """Returns the kernel for an operator that is derived from the table, or None."""
    rule = RULES.get(name)
    base = name.partition(".")[0]
    if rule is not None:
        return mutating(rule) if rule.mutates else functional(rule)
    if name in renamed() or (base.endswith("_") and not base.endswith("__")):
        found = functional_of(name) if name in renamed() or base[:-1] in _by_base() else None
        return in_place(name, found) if found is not None else None
    if base in _by_base() and any(a.is_out for a in schema_of(name).arguments):
        return out_form(name)
    return None


def untraced(kernel: Kernel) -> Kernel:
    """Keep `torch.compile` from compiling a kernel's frames around a graph break."""
    code = getattr(kernel, "__code__", None) or type(kernel).__call__.__code__
    if id(code) not in _kept_out:  # most kernels are closures of a few functions
        keep_dynamo_out(code)
        _kept_out[id(code)] = code
    return kernel


def bind(library: torch.library.Library, taken: dict[str, Kernel]) -> None:
    """Register a kernel for every ATen operator that is derived from the table.

    Args:
        library: the library in which to register the kernels.
        taken: kernels written by hand, by name without namespace, which take precedence.
    """
    for name, kernel in taken.items():
        library.impl(name, untraced(kernel), "PrivateUse1")
    of = torch_c.dispatch_get_registrations_for_dispatch_key
    composite = set(of(_COMPOSITE_IMPLICIT)).difference(of("Autograd"))
    bases = {name.rstrip("_") for name in _by_base()}
    looked_at = {
        name.partition(".")[0] for name in (*operators_with("values"), *operators_with("numbers"))
    }
    for name in operator_names():
        base = name.partition(".")[0]
        if base.rstrip("_") not in bases and name not in renamed():
            continue
        short = name.removeprefix("aten::")
        if short in taken or name in composite:
            continue
        kernel = derived(name)
        if kernel is not None:
            if base.removesuffix("_") in looked_at:
                names = tuple(a.name for a in schema_of(name).arguments)
                kernel = checked(names, RULES.get(name) or functional_of(name), kernel)
            library.impl(short, untraced(kernel), "PrivateUse1")
