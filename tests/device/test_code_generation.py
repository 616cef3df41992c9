"""The options with which programs are compiled on CPUs."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.errors import JaxRuntimeError

import calque
from calque.device.runtime import code_generation

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="options of XLA for CPUs")

EMITTERS = "xla_cpu_use_fusion_emitters"
PARTS = "xla_cpu_parallel_codegen_split_count"
SCHEDULE = "xla_cpu_scheduler_type"
LEAST_MEMORY = "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Returns the name and the options of each program that is compiled during a test."""
    found: list[tuple[str, dict[str, Any]]] = []
    compile_ = code_generation._compile

    def seen(backend: Any, module: Any, devices: Any, options: Any, *others: Any) -> Any:
        name = str(module.operation.attributes["sym_name"])
        found.append((name, dict(options.env_option_overrides)))
        return compile_(backend, module, devices, options, *others)

    monkeypatch.setattr(code_generation, "_compile", seen)
    monkeypatch.setattr(code_generation, "_options_unknown_to_xla", set())
    monkeypatch.setenv("XLA_FLAGS", "")
    return found


def _options(compiled: list[tuple[str, dict[str, Any]]], name: str) -> dict[str, Any]:
    return next(options for program, options in compiled if name in program)


def test_an_eager_program_is_generated_directly(compiled: list[Any]) -> None:
    x = torch.full((37, 41), 0.5, device="jax")
    torch.testing.assert_close(x.cos().cpu(), torch.full((37, 41), 0.5).cos())
    assert _options(compiled, "aten_cos") == {PARTS: 1, EMITTERS: False}


@pytest.mark.parametrize(
    ("name", "function"),
    [("cat", lambda x: torch.cat([x, x])), ("softmax", lambda x: x.softmax(0))],
)
def test_a_large_array_is_not_where_that_is_slower(
    compiled: list[Any], name: str, function: Any
) -> None:
    function(torch.ones(300, 301, device="jax"))
    function(torch.ones(17, 301, device="jax"))
    options = [options for program, options in compiled if name in program]
    assert [EMITTERS in one for one in options] == [False, True]


def test_many_tensors_are_compiled_in_parts(compiled: list[Any]) -> None:
    tensors = [torch.ones(1001, device="jax") for _ in range(300)]
    torch._foreach_cos(tensors)
    assert int(_options(compiled, "foreach_cos")[PARTS]) > 1


def test_a_jitted_function_is_compiled_as_usual_in_the_order_of_least_memory(
    compiled: list[Any],
) -> None:
    calque.jit(lambda x: x.cos() + 1)(torch.ones(400, 430, device="jax"))
    assert {SCHEDULE: LEAST_MEMORY} in [options for _, options in compiled]


def test_small_programs_run_in_the_order_of_xla(compiled: list[Any]) -> None:
    calque.jit(lambda x: x.cos() + 1)(torch.ones(43, device="jax"))
    assert {} in [options for _, options in compiled]
    assert not any(SCHEDULE in options for _, options in compiled)


def test_so_are_compiled_graphs(compiled: list[Any]) -> None:
    torch.compile(lambda x: x.cos() + 1, backend="calque")(torch.ones(400, 43, device="jax"))
    assert {SCHEDULE: LEAST_MEMORY} in [options for _, options in compiled]


def test_programs_of_jax_are_compiled_as_usual(compiled: list[Any]) -> None:
    jax.jit(lambda x: x + 1)(jnp.ones(43))
    assert all(not options for _, options in compiled)


def test_flags_of_the_user_count(compiled: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--{EMITTERS}=true --{SCHEDULE}={LEAST_MEMORY}")
    torch.ones(47, device="jax").cos()
    assert _options(compiled, "aten_cos") == {PARTS: 1}
    calque.jit(lambda x: x.cos() + 1)(torch.ones(400, 47, device="jax"))
    assert {} in [options for _, options in compiled]


@pytest.mark.parametrize(
    ("missing", "size"), [({EMITTERS}, 53), ({PARTS}, 59), ({EMITTERS, PARTS}, 61)]
)
def test_a_release_without_an_option_compiles_without_it(
    compiled: list[Any], monkeypatch: pytest.MonkeyPatch, missing: set[str], size: int
) -> None:
    compile_ = code_generation._compile

    def refuses(backend: Any, module: Any, devices: Any, options: Any, *others: Any) -> Any:
        for name, _ in options.env_option_overrides:
            if name in missing:
                raise JaxRuntimeError(f"INVALID_ARGUMENT: No such compile option: '{name}'")
        return compile_(backend, module, devices, options, *others)

    monkeypatch.setattr(code_generation, "_compile", refuses)
    x = torch.ones(size, device="jax")
    x.tan()  # asks for one option only
    assert x.cos().sum().item() == pytest.approx(size * 0.5403023, rel=1e-5)
    assert code_generation._options_unknown_to_xla == missing
    assert not missing & set().union(*(options for _, options in compiled))


def test_a_release_without_a_schedule_compiles_in_its_own_order(
    compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_ = code_generation._compile

    def refuses(backend: Any, module: Any, devices: Any, options: Any, *others: Any) -> Any:
        if SCHEDULE in dict(options.env_option_overrides):
            raise JaxRuntimeError(f"INVALID_ARGUMENT: No such compile option: '{SCHEDULE}'")
        return compile_(backend, module, devices, options, *others)

    monkeypatch.setattr(code_generation, "_compile", refuses)
    double = calque.jit(lambda x: x * 2)
    x = torch.ones(400, 71, device="jax")
    assert double(x).sum().item() == 2 * x.numel()
    assert double.lower(x).compile() is not None
    assert SCHEDULE in code_generation._options_unknown_to_xla


def test_an_unknown_option_of_another_program_is_an_error(compiled: list[Any]) -> None:
    with pytest.raises(RuntimeError, match="xla_no_such_option"):
        jax.jit(lambda x: x + 1, compiler_options={"xla_no_such_option": "1"})(jnp.ones(3))


def test_another_error_of_the_compiler_is_raised(
    compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise JaxRuntimeError("RESOURCE_EXHAUSTED: no more room")

    monkeypatch.setattr(code_generation, "_compile", fails)
    with pytest.raises(RuntimeError, match="no more room"):
        torch.ones(67, device="jax").cos()
    assert code_generation._options_unknown_to_xla == set()
