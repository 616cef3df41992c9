"""Every operator that takes a number, with numbers that do not fit: the CPU's values or errors.

`CALQUE_SAMPLE` and `CALQUE_SEED` choose a part.
"""

import os
import random

import pytest
import torch

NUMBERS = (300, -1, 2.5, 1e40, float("nan"), True, 1 + 2j)
DTYPES = (torch.int8, torch.float32, torch.bool, torch.uint8)
SKIPPED = [
    "backward",
    "sparse",
    "quant",
    "fake_",
    "mkldnn",
    "cudnn",
    "rand",
    "normal",
    "bernoulli",
    "dropout",
    "rrelu",
    "uniform",
    "exponential",
    "cauchy",
    "geometric",
    "amp",
    "empty",
    "sym_",
    "sgd",
    "adam",
    "_to_",
    "nested",
    "native_",
    "weight",
    "fused",
    "foreach",
]

DIFFERENT = {
    # CPU kernels that compute values that its checks reject elsewhere, or that saturate.
    "_add_relu.Tensor": "quantised kernels' own clamp",
    "_add_relu.Scalar": "quantised kernels' own clamp",
    "addmm.dtype": "the CPU has no kernel",
    "celu": "NaN as alpha is not read where x > 0",
    "elu": "NaN as alpha is not read where x > 0",
    "clamp": "booleans have no kernel where the bound is a number",
    "clamp_min": "booleans have no kernel where the bound is a number",
    "clamp_max": "booleans have no kernel where the bound is a number",
    "clip": "booleans have no kernel where the bound is a number",
    "constant_pad_nd": "booleans take any number",
    "dist": "the order 1e40",
    "hardshrink": "a boolean as number",
    "histc": "integers have no kernel, but a bfloat16's counts are asked for",
    "linalg_vector_norm": "the order 1e40",
    "norm.Scalar": "the order 1e40",
    "norm.ScalarOpt_dtype": "the dtype 0 is uint8",
    "renorm": "the order 1e40",
    "softshrink": "a complex number as lambda",
}


def _is_number(argument):
    return str(argument.type) in ("number", "Optional[number]")


def _overloads():
    for name in sorted(dir(torch.ops.aten)):
        packet = getattr(torch.ops.aten, name)
        if any(part in name for part in SKIPPED) or not hasattr(packet, "overloads"):
            continue
        for overload in packet.overloads():
            operator = getattr(packet, overload)
            arguments = operator._schema.arguments
            written = any(a.name == "out" for a in arguments) or overload.endswith("out")
            if not written and any(map(_is_number, arguments)):
                yield operator


def _value(argument, operator, dtype, device):
    kind = str(argument.type)
    if kind == "Tensor" and argument.name == "index":
        nested = "scatter" in operator.name()
        return torch.tensor([[0, 1], [1, 0]] if nested else [0, 1]).to(device)
    if kind == "Tensor" and argument.name == "mask":
        return torch.tensor([[True, False], [False, True]]).to(device)
    if kind == "Tensor":
        return torch.tensor([[0, 1], [2, 3]]).to(dtype).to(device)
    return {"int": 0, "bool": False, "float": 1.0, "str": "add", "List[int]": [1, 1]}[kind]


def _call(operator, dtype, place, number, device):
    """The outcome of a call: its tensors, or the error. `place` counts the numbers."""
    args, kwargs, numbers = [], {}, 0
    for argument in operator._schema.arguments:
        if _is_number(argument):
            chosen, numbers = numbers == place, numbers + 1
            default = argument.default_value if argument.has_default_value() else 1
            value = number if chosen else default
        elif argument.has_default_value():
            value = argument.default_value
        else:
            value = _value(argument, operator, dtype, device)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    try:
        result = operator(*args, **kwargs)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
        return error
    results = result if isinstance(result, tuple | list) else (result,)
    return [x.cpu() for x in results if isinstance(x, torch.Tensor)]


def _agree(x, y):
    if isinstance(x, Exception) or isinstance(y, Exception):
        return isinstance(x, Exception) and isinstance(y, Exception)
    return all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.allclose(
            a.to(torch.complex128), b.to(torch.complex128), rtol=1e-4, atol=1e-5, equal_nan=True
        )
        for a, b in zip(x, y, strict=True)
    )


def _callable_here(operator):
    known = {"Tensor", "int", "bool", "float", "str", "List[int]"}
    return all(
        _is_number(a) or a.has_default_value() or str(a.type) in known
        for a in operator._schema.arguments
    )


OPERATORS = {o.name().removeprefix("aten::"): o for o in _overloads() if _callable_here(o)}


def _known(name):
    return name in DIFFERENT or name.partition(".")[0].removesuffix("_") in DIFFERENT


NAMES = sorted(n for n in OPERATORS if not _known(n))
SAMPLE = float(os.environ.get("CALQUE_SAMPLE", "1"))
CHOSEN = random.Random(os.environ.get("CALQUE_SEED", "0")).sample(
    NAMES, max(1, round(SAMPLE * len(NAMES)))
)


@pytest.mark.conformance
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(CHOSEN))
def test_numbers_that_do_not_fit(name, dtype):
    operator, different = OPERATORS[name], []
    for place in range(sum(map(_is_number, operator._schema.arguments))):
        for number in NUMBERS:
            cpu = _call(operator, dtype, place, number, "cpu")
            device = _call(operator, dtype, place, number, "jax")
            if not _agree(cpu, device):
                different.append(f"{place}: {number}: {cpu!s:.60} | {device!s:.60}")
    assert not different, "\n".join(different)
