"""One check for each way of calling an operator: on the device as on the CPU.

Each takes an entry of PyTorch's operator database and a dtype, yields once for every sample that
it compared, and raises where the device differs from CPU PyTorch.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

import calque

RANDOM_NAMES = (
    "dropout",
    "rand",
    "normal",
    "bernoulli",
    "multinomial",
    "uniform",
    "exponential",
    "cauchy",
    "geometric",
    "log_normal",
    "rrelu",
    "empty",
    "poisson",
    "gumbel",
    "fractional",
    "multi_head_attention_forward",
    "svd_lowrank",
    "pca_lowrank",
)
AMBIGUOUS_NAMES = ("linalg", "svd", "pca_lowrank", "symeig", "geqrf", "qr", "lu", "ormqr")
"""Factorizations: only what `output_process_fn_grad` keeps of the results is unique."""

DIM_OF_TIES = {"sort": 0, "argsort": 0, "topk": 1, "kthvalue": 1, "mode": 0}
"""Operators that may return the index of any of several equal values; where they take `dim`."""

DATA_DEPENDENT = (
    "allclose",
    "argwhere",
    "bincount",
    "combinations",
    "equal",
    "item",
    "masked_select",
    "narrow",
    "nn.functional.one_hot",
    "nonzero",
    "repeat_interleave",
    "unique",
    "unique_consecutive",
)
"""Operators whose result has a shape that depends on values, or is a Python number: what they give
cannot be known inside `calque.jit`, which must say so (repeat_interleave: with a tensor of repeats;
narrow: with a tensor as its start, as a view whose place is not known).
"""

HOST_INDICES = ("tensor_split",)
"""Operators whose arguments but the first stay on the CPU, where PyTorch wants them."""

WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
"""The precision that judges between the device and the CPU where the two differ."""

TOLERANCE = {
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (3e-2, 3e-2),
    torch.float32: (2e-4, 2e-4),
    torch.complex64: (2e-4, 2e-4),
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
}

Samples = Iterator[SampleInput]
Arguments = tuple[Any, tuple[Any, ...], dict[str, Any]]


# Moving and comparing ---------------------------------------------------------------------------


def to_device(tree: Any, grad: bool = False) -> Any:
    """Copies of the tensors in a tree on the device, leaves of autograd if `grad` and floating."""

    def move(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            named = isinstance(x, torch.device) or (isinstance(x, str) and x == "cpu")
            return torch.device("jax") if named else x
        moved = _with_memory(x.detach())
        return moved.requires_grad_(x.requires_grad) if grad else moved

    return pytree.tree_map(move, tree)


def _with_memory(x: torch.Tensor) -> torch.Tensor:
    """A copy on the device; of a part of some memory, that part of a copy of it all."""
    count = x.untyped_storage().nbytes() // x.itemsize if x.layout == torch.strided else 0
    if count <= x.numel() or x.is_conj() or x.is_neg():
        return x.to("jax")
    memory = x.as_strided((count,), (1,), 0).to("jax")
    return memory.as_strided(x.shape, x.stride(), x.storage_offset())


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors in a tree."""
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def is_random(op: OpInfo, sample: SampleInput) -> bool:
    """Whether values cannot be compared (only shapes and dtypes are)."""
    return any(part in op.name for part in RANDOM_NAMES) or bool(sample.kwargs.get("dropout_p"))


def compare(expected: Any, actual: Any, values: bool = True) -> None:
    """Raise AssertionError where two results differ in structure, dtype, shape or value."""
    left, left_spec = pytree.tree_flatten(expected)
    right, right_spec = pytree.tree_flatten(actual)
    assert len(left) == len(right), f"{left_spec} != {right_spec}"
    for a, b in zip(left, right, strict=True):
        if not isinstance(a, torch.Tensor):
            assert type(a) is type(b), (a, b)
            continue
        assert b.device.type == "jax", f"the result is on {b.device}"
        assert a.dtype == b.dtype, f"dtype {b.dtype}, not {a.dtype}"
        assert a.shape == b.shape, f"shape {tuple(b.shape)}, not {tuple(a.shape)}"
        if values:
            rtol, atol = TOLERANCE.get(a.dtype, (0, 0))
            host = b.detach().cpu().resolve_conj().resolve_neg()
            torch.testing.assert_close(host, a.detach(), rtol=rtol, atol=atol, equal_nan=True)


def _arguments(sample: SampleInput) -> Arguments:
    return sample.input, sample.args, sample.kwargs


def _moved(op: OpInfo, arguments: Arguments, grad: bool = False) -> Arguments:
    """The arguments on the device; creation operators are told of it."""
    first, rest, named = to_device(arguments, grad)
    if op.name in HOST_INDICES:
        rest, named = arguments[1:]
    if not tensors_of(arguments):
        named = {"device": torch.device("jax"), **named}
    return first, rest, named


def _call(function: Callable[..., Any], arguments: Arguments) -> Any:
    first, rest, named = arguments
    return function(first, *rest, **named)


def _on_cpu(op: OpInfo, arguments: Arguments) -> Any:
    """What the CPU gives; `_REFUSED` for samples that it refuses itself."""
    try:
        return _call(op, arguments)
    except Exception:
        return _REFUSED


_REFUSED = object()


def _unique(op: OpInfo, sample: SampleInput, result: Any) -> Any:
    """The part of a result that has one right value."""
    if op.name in DIM_OF_TIES and not sample.kwargs.get("stable"):
        return _settled(op, sample, result)
    process = sample.output_process_fn_grad
    if process is None or not any(part in op.name for part in AMBIGUOUS_NAMES):
        return result
    return process(result)


def _settled(op: OpInfo, sample: SampleInput, result: Any) -> Any:
    """A result with the values that its indices point at in their place.

    Indices of a whole sort must also be a permutation, which their own sort tells.
    """
    place, x = DIM_OF_TIES[op.name], sample.input
    if not x.ndim:
        return result
    dim = sample.kwargs.get("dim", sample.args[place] if len(sample.args) > place else -1)
    index = (result if op.name == "argsort" else result[1]).detach().cpu()
    dropped = index.ndim < x.ndim
    pointed = x.detach().gather(dim, index.unsqueeze(dim) if dropped else index)
    settled = [pointed.squeeze(dim) if dropped else pointed]
    if "sort" in op.name:
        settled.append(index.sort(dim).values)
    device = tensors_of(result)[0].device
    settled = [part.to(device) for part in settled]
    return settled if op.name == "argsort" else [result[0], *settled]


def _agree(op: OpInfo, sample: SampleInput, expected: Any, actual: Any) -> None:
    """Compare two results; where they differ, the device must be as near to wider ones."""
    expected, actual = _unique(op, sample, expected), _unique(op, sample, actual)
    values = not is_random(op, sample)
    try:
        compare(expected, actual, values)
    except AssertionError:
        exact = _on_cpu(op, _widened(_arguments(sample))) if values else _REFUSED
        if exact is _REFUSED or not any(t.dtype in WIDER for t in tensors_of(expected)):
            raise
        compare(expected, actual, values=False)
        _no_farther(expected, actual, _unique(op, sample, exact))


def _widened(tree: Any) -> Any:
    """Tensors, and dtypes, made wider."""

    def widen(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return WIDER.get(x, x)
        if not isinstance(x, torch.Tensor) or x.dtype not in WIDER:
            return x
        return x.detach().to(WIDER[x.dtype]).requires_grad_(x.requires_grad)

    return pytree.tree_map(widen, tree)


def _no_farther(expected: Any, actual: Any, exact: Any) -> None:
    """Raise AssertionError where the device is farther off than the CPU: than twice as far."""
    rows = zip(*map(tensors_of, (expected, actual, exact)), strict=True)
    for cpu, ours, true in [(a.detach(), b.detach().cpu(), e.detach()) for a, b, e in rows]:
        if cpu.dtype not in WIDER or true.dtype != WIDER[cpu.dtype]:
            compare(cpu, ours.to("jax"))
            continue
        rtol, atol = TOLERANCE[cpu.dtype]
        allowed = atol + rtol * true.abs()
        off = [
            ((x.to(true.dtype) - true).abs() / allowed).nan_to_num(torch.inf)[true.isfinite()]
            for x in (ours, cpu)
        ]
        if off[0].numel():
            far, cpu_far = (x.max().item() for x in off)
            message = f"{far:.3g} tolerances off, the CPU {cpu_far:.3g}"
            assert far <= max(1.0, 2 * cpu_far), message


# Checks -----------------------------------------------------------------------------------------


def eager(op: OpInfo, dtype: torch.dtype, strided: bool = False) -> Iterator[None]:
    """The values of a plain call; of samples with gaps in memory if `strided`."""
    for sample in op.sample_inputs("cpu", dtype):
        sample = sample.noncontiguous() if strided else sample
        expected = _on_cpu(op, _arguments(sample))
        if expected is _REFUSED:
            continue
        moved = to_device_strided(_arguments(sample)) if strided else _moved(op, _arguments(sample))
        _agree(op, sample, expected, _call(op, moved))
        yield


def to_device_strided(arguments: Arguments) -> Arguments:
    """As `_moved`, keeping the strides of the tensors."""
    first, rest, named = _keeping_strides(arguments)
    if not tensors_of(arguments):
        named = {"device": torch.device("jax"), **named}
    return first, rest, named


def _keeping_strides(tree: Any) -> Any:
    def move(x: Any) -> Any:
        moved = to_device(x)
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
            return moved
        if x.stride() == moved.stride():
            return moved
        gaps = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="jax")
        return gaps.copy_(x.detach())

    return pytree.tree_map(move, tree)


def jit(op: OpInfo, dtype: torch.dtype) -> Iterator[None]:
    """The values of a call inside `calque.jit`, the tensors its arguments.

    What cannot be known there raises TraceError, or is assumed where that is asked for.
    """
    refused, samples = False, 0
    for sample in op.sample_inputs("cpu", dtype):
        expected = _on_cpu(op, _arguments(sample))
        if expected is _REFUSED:
            continue
        samples += 1
        try:
            actual = calque.jit(functools.partial(_call, op), specialize=False)(
                _moved(op, _arguments(sample))
            )
        except calque.TraceError:
            if op.name not in DATA_DEPENDENT:
                raise
            refused = True
            _agree(op, sample, expected, _specialized(op, sample))
        else:
            _agree(op, sample, expected, actual)
        yield
    if op.name in DATA_DEPENDENT and samples:
        assert refused, "takes part in programs now: no entry of DATA_DEPENDENT"


def _specialized(op: OpInfo, sample: SampleInput) -> Any:
    """What a program gives that is compiled for the values of a sample."""
    jitted = calque.jit(functools.partial(_call, op), specialize=True)
    jitted(_moved(op, _arguments(sample)))
    result = jitted(_moved(op, _arguments(sample)))
    found = [(p["hits"], p["misses"]) for p in jitted.explain().programs]
    assert found == [(1, 0)], jitted.explain()
    return result


def grad(op: OpInfo, dtype: torch.dtype, order: int = 1) -> Iterator[None]:
    """The values, and the gradients of the sum of all results weighted at random."""
    for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
        arguments = _arguments(sample)
        expected = _on_cpu(op, arguments)
        if expected is _REFUSED:
            continue
        moved = _moved(op, arguments, grad=True)
        actual = _call(op, moved)
        if sample.output_process_fn_grad is not None:
            expected = sample.output_process_fn_grad(expected)
            actual = sample.output_process_fn_grad(actual)
        values = not is_random(op, sample)
        try:
            compare(expected, actual, values)
            if values:
                _compare_gradients(
                    _requiring(expected),
                    _requiring(actual),
                    _requiring(arguments),
                    _requiring(moved),
                    order,
                )
        except AssertionError:
            if dtype not in WIDER or not values or order > 1:
                raise
            exact = _with_gradients(op, sample, _widened(arguments))
            if exact is _REFUSED:
                raise
            expected, actual = (_with_gradients(op, sample, a) for a in (arguments, moved))
            compare(expected, actual, values=False)
            _no_farther(expected, actual, exact)
        yield


def _with_gradients(op: OpInfo, sample: SampleInput, arguments: Arguments) -> Any:
    """A result and the gradients of the sum of its parts weighted at random."""
    result = _on_cpu(op, arguments)
    if result is _REFUSED:
        return result
    if sample.output_process_fn_grad is not None:
        result = sample.output_process_fn_grad(result)
    outputs, leaves = _requiring(result), _requiring(arguments)
    generator = torch.Generator().manual_seed(0)
    kinds = [torch.complex128 if o.is_complex() else torch.float64 for o in outputs]
    weights = [
        torch.randn(o.shape, dtype=kind, generator=generator).to(o)
        for o, kind in zip(outputs, kinds, strict=True)
    ]
    found = torch.autograd.grad(outputs, leaves, weights, allow_unused=True) if outputs else []
    return result, [g for g in found if g is not None]


def _requiring(tree: Any) -> list[torch.Tensor]:
    return [t for t in tensors_of(tree) if t.requires_grad]


def _compare_gradients(
    outputs: list[torch.Tensor],
    device_outputs: list[torch.Tensor],
    leaves: list[torch.Tensor],
    device_leaves: list[torch.Tensor],
    order: int,
) -> None:
    if not outputs or not leaves:
        return
    assert len(outputs) == len(device_outputs), "requires_grad of the results differs"
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(o.shape, dtype=o.dtype, generator=generator) for o in outputs]
    more = order > 1
    try:
        want = torch.autograd.grad(outputs, leaves, weights, allow_unused=True, create_graph=more)
    except (RuntimeError, IndexError):  # not differentiable on the CPU
        return
    got = torch.autograd.grad(
        device_outputs,
        device_leaves,
        [w.to("jax") for w in weights],
        allow_unused=True,
        create_graph=more,
    )
    for a, b in zip(want, got, strict=True):
        assert (a is None) == (b is None), "a gradient is missing"
        if a is not None:
            compare(a, b)
    if more:
        rows = [(a, b) for a, b in zip(want, got, strict=True) if a is not None and a.requires_grad]
        assert all(b.requires_grad for _, b in rows), "a gradient cannot be differentiated"
        first, second = [a for a, _ in rows], [b for _, b in rows]
        _compare_gradients(first, second, leaves, device_leaves, order - 1)


def inplace(op: OpInfo, dtype: torch.dtype) -> Iterator[None]:
    """The in-place form: the value, the very tensor returned, a base that the write reached."""
    variant = op.inplace_variant
    for sample in op.sample_inputs("cpu", dtype):
        if isinstance(sample.input, list):
            _inplace_of_list(variant, sample)
            yield
        if sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
            continue
        _, rest, named = _arguments(sample)
        base = torch.stack([sample.input.detach(), sample.input.detach()])
        moved_base = to_device(base)
        moved_rest, moved_named = to_device((rest, named))
        try:
            variant(base[1], *rest, **named)
        except Exception as refused:
            try:
                variant(moved_base[1], *moved_rest, **moved_named)
            except type(refused):
                compare(torch.stack([sample.input.detach()] * 2), moved_base)
                yield
                continue
            raise AssertionError(f"no error where the CPU says: {refused}") from None
        view = moved_base[1]
        result = variant(view, *moved_rest, **moved_named)
        assert result is view, "an in-place operator returns its argument"
        compare(base, moved_base, not is_random(op, sample))
        yield


def _inplace_of_list(variant: Callable[..., Any], sample: SampleInput) -> None:
    own = [t.detach().clone() for t in sample.input]
    moved = to_device((own, sample.args, sample.kwargs))
    try:
        variant(own, *sample.args, **sample.kwargs)
    except Exception as refused:
        own = sample.input
        try:
            _call(variant, moved)
        except type(refused):
            pass
        else:
            raise AssertionError(f"no error where the CPU says: {refused}") from None
    else:
        _call(variant, moved)
    compare(own, moved[0])


def out(op: OpInfo, dtype: torch.dtype) -> Iterator[None]:
    """`out=`: into tensors of the right size, with gaps in memory, and empty ones to be resized.

    Samples that the CPU refuses with such an `out=` are passed over.
    """
    for sample in op.sample_inputs("cpu", dtype):
        arguments = _arguments(sample)
        expected = _on_cpu(op, arguments)
        if expected is _REFUSED or not tensors_of(expected):
            continue
        for prepare in (_filled, _with_gaps, _empty):
            outs = pytree.tree_map(prepare, expected)
            theirs = _into(op, arguments, outs)
            if theirs is _REFUSED:
                continue
            moved = _keeping_strides(outs)
            ours = _into(op, _moved(op, arguments), moved, refusable=False)
            trees = map(tensors_of, (outs, theirs, moved, ours))
            for given, returned, a, b in zip(*trees, strict=False):  # some steps return nothing
                assert (given is returned) == (a is b), "out= is not what is returned"
            for a, b in zip(tensors_of(outs), tensors_of(moved), strict=True):
                kept = prepare is _empty or a.stride() == b.stride()
                assert kept, f"strides {b.stride()} of out=, not {a.stride()}"
            if is_random(op, sample) or _is_filled(expected, outs):
                _agree(op, sample, outs, moved)
        yield


def _is_filled(expected: Any, outs: Any) -> bool:
    """Whether the CPU's `out=` holds what it returns without; `ihfft2`'s need not."""
    pairs = zip(tensors_of(expected), tensors_of(outs), strict=True)
    return all(a.shape == b.shape and torch.allclose(a, b, equal_nan=True) for a, b in pairs)


def _into(op: OpInfo, arguments: Arguments, outs: Any, refusable: bool = True) -> Any:
    """The result of a call with `out=`; `_REFUSED` where it raises."""
    first, rest, named = arguments
    place = outs if isinstance(outs, torch.Tensor | list) else tuple(tensors_of(outs))
    try:
        return op(first, *rest, **{**named, "out": place})
    except Exception:
        if refusable:
            return _REFUSED
        raise


def _filled(x: Any) -> Any:
    return torch.ones_like(x) if isinstance(x, torch.Tensor) else x


def _with_gaps(x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or not x.ndim:
        return _filled(x)
    return torch.ones((*x.shape, 2), dtype=x.dtype)[..., 1]


def _empty(x: Any) -> Any:
    return torch.empty(0, dtype=x.dtype) if isinstance(x, torch.Tensor) else x


def errors(op: OpInfo, dtype: torch.dtype) -> Iterator[None]:
    """Bad arguments raise what the CPU raises."""
    for bad in op.error_inputs("cpu"):
        sample = bad.sample_input
        try:
            _call(op, copy.deepcopy(_arguments(sample)))
        except Exception as raised:
            expected = raised
        else:
            continue
        try:
            _call(op, _moved_to_fail(op, _arguments(sample), expected))
        except type(expected):
            yield
        except Exception as error:
            raise AssertionError(
                f"{type(error).__name__}, not {type(expected).__name__}: {expected}"
            ) from error
        else:
            raise AssertionError(f"no {type(expected).__name__}: {expected}")


def _moved_to_fail(op: OpInfo, arguments: Arguments, expected: Exception) -> Arguments:
    """The arguments on the device, their memory laid out and shared as on the CPU."""
    bases: dict[int, torch.Tensor] = {}
    moved: dict[int, Any] = {}

    def move(x: Any) -> Any:
        if id(x) not in moved:
            moved[id(x)] = place(x)
        return moved[id(x)]

    def place(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.dtype.is_complex:
            return to_device(x)
        storage = x.untyped_storage()
        flat = torch.empty(0, dtype=x.dtype).set_(storage)
        base = bases.get(storage._cdata)
        if base is None:
            base = bases[storage._cdata] = flat.to("jax")
        if base.dtype != x.dtype:
            return to_device(x)
        return base.as_strided(x.shape, x.stride(), x.storage_offset())

    first, rest, named = pytree.tree_map(move, arguments)
    if not tensors_of(arguments):
        try:
            _call(op, (arguments[0], arguments[1], {**arguments[2], "device": "cpu"}))
        except Exception as error:
            if type(error) is type(expected):  # the operator has a device argument
                named = {"device": torch.device("jax"), **named}
    return first, rest, named


def layout(op: OpInfo, dtype: torch.dtype) -> Iterator[None]:
    """Which results share memory with an argument, and the strides of all results."""
    for sample in op.sample_inputs("cpu", dtype):
        arguments = _arguments(sample)
        expected = _on_cpu(op, arguments)
        if expected is _REFUSED:
            continue
        moved = to_device_strided(arguments)
        actual = _call(op, moved)
        given, ours = tensors_of(arguments), tensors_of(moved)
        for a, b in zip(tensors_of(expected), tensors_of(actual), strict=True):
            if a.layout != torch.strided:
                continue
            want, got = _sharing(a, given), _sharing(b, ours)
            assert want == got, f"shares memory with arguments {got}, not {want}"
            assert a.stride() == b.stride(), f"strides {b.stride()}, not {a.stride()} {a.shape}"
        yield


def _sharing(result: torch.Tensor, given: list[torch.Tensor]) -> list[int]:
    storage = result.untyped_storage()._cdata
    if not result.numel():
        return []
    return [i for i, tensor in enumerate(given) if tensor.untyped_storage()._cdata == storage]


CHECKS: dict[str, Callable[[OpInfo, torch.dtype], Iterator[None]]] = {
    "eager": eager,
    "strided": functools.partial(eager, strided=True),
    "jit": jit,
    "grad": grad,
    "grad2": functools.partial(grad, order=2),
    "inplace": inplace,
    "out": out,
    "layout": layout,
    "errors": errors,
}


def supports(op: OpInfo, dtype: torch.dtype, mode: str) -> bool:
    """Whether the CPU has an operator in a dtype, called in a mode."""
    if mode in ("grad", "grad2"):
        able = op.supports_autograd and (mode == "grad" or op.supports_gradgrad)
        return able and dtype in op.supported_backward_dtypes("cpu")
    if mode == "errors":
        return op.error_inputs_func is not None and dtype == torch.float32
    if mode == "inplace" and op.inplace_variant is None:
        return False
    if mode == "out" and not op.supports_out:
        return False
    return dtype in op.supported_dtypes("cpu")
