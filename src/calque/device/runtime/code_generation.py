"""Compiles with options that XLA may lack, and eager programs in a cheaper way on CPUs.

XLA lowers each loop of a program through MLIR ("fusion emitters"), or directly to LLVM IR. The
first makes faster loops of what is fused, as in a jitted step. An eager program is mostly one
instruction. Generating its code directly takes 60 per cent of the time, and gives the same bits
but for a few functions, which are left out; the code is as fast for small arrays, and twice as fast
for most large ones. XLA also compiles the loops of a program in up to 32 parts, in parallel, which
takes more time in all than few parts do. `benchmarks/first_step.py` and `benchmarks/ops.py` measure
it.
"""

import os
import re
from typing import Any

from jax.errors import JaxRuntimeError

from calque.device.runtime.shared_contexts import sharing
from calque.upstream.jax_internals import compiler

_EMITTERS = "xla_cpu_use_fusion_emitters"
_PARTS = "xla_cpu_parallel_codegen_split_count"
_MOST_PARTS = 32  # XLA's own choice
_PART = 256  # instructions in a part
_SMALL = 1 << 16  # elements of the largest array of a program
_compile = compiler.backend_compile_and_load

_SHAPES = r"tensor<((?:\d+x)+)[a-z]"
_LESS_EXACT = r"stablehlo\.(?:tan|atan2)\b|[x<]f16>"
"""What rounds differently if its code is generated directly."""
_SLOWER = (
    r"stablehlo\.(?:transpose|concatenate|reverse|exponential)\b"
    r"|x(?:f64|complex<f64>)>"
    r"|\(tensor<[\dx]+b?f\d+>\) -> tensor<[\dx]+u?i\d+>"
)
"""What is slower, in large arrays, if its code is generated directly."""


Options = dict[str, Any]
_may_be_unknown: set[str] = {_EMITTERS, _PARTS}
_options_unknown_to_xla: set[str] = set()
"""The options that this release of XLA turned out not to have."""


def may_be_unknown(options: Options) -> Options:
    """Returns options with which calque compiles programs. They are left out from now on where XLA
    does not have them.
    """
    _may_be_unknown.update(options)
    return options


def install() -> None:
    """Have JAX compile here."""
    compiler.backend_compile_and_load = _choose


def _choose(
    backend: Any, module: Any, devices: Any, options: Any, *others: Any, **more: Any
) -> Any:
    """Compiles a program, like JAX's own function."""
    given = list(options.env_option_overrides)
    if sharing.wanted and backend.platform == "cpu":
        given += _options(module)
    while True:
        known = [option for option in given if option[0] not in _options_unknown_to_xla]
        options.env_option_overrides = known
        try:
            return _compile(backend, module, devices, options, *others, **more)
        except JaxRuntimeError as error:
            ours = _may_be_unknown.intersection(name for name, _ in known)
            refused = {name for name in ours if f"'{name}'" in str(error)}
            if not refused:
                raise
            _options_unknown_to_xla.update(refused)


def _options(module: Any) -> list[tuple[str, Any]]:
    """Returns XLA's options for an eager program, without those that the user has set."""
    text = module.operation.get_asm(large_elements_limit=16)
    parts = min(_MOST_PARTS, 1 + text.count("stablehlo.") // _PART)
    options: list[tuple[str, Any]] = [(_PARTS, parts)]
    is_as_fast = _largest(text) <= _SMALL or re.search(_SLOWER, text) is None
    if is_as_fast and re.search(_LESS_EXACT, text) is None:
        options.append((_EMITTERS, False))
    flags = os.environ.get("XLA_FLAGS", "")
    return [option for option in options if option[0] not in flags]


def _largest(text: str) -> int:
    """Returns the number of elements of the largest array in a program."""
    largest = 0
    for sizes in {found.group(1) for found in re.finditer(_SHAPES, text)}:
        count = 1
        for size in sizes[:-1].split("x"):
            count *= int(size)
        largest = max(largest, count)
    return largest
