"""Programs are compared by what their functions do, not by what these are called."""

import warnings

import jax
import jax.numpy as jnp
import torch

import calque
from calque.jitting.program_text import difference

PROGRAM = """module @jit_f attributes {n = 1 : i32} {
  func.func public @main(%arg0: tensor<f32>) -> tensor<f32> {
    %0 = call @twice(%arg0) : (tensor<f32>) -> tensor<f32>
    %1 = call @twice(%0) : (tensor<f32>) -> tensor<f32>
    %2 = stablehlo.custom_call @target(%1) : (tensor<f32>) -> tensor<f32>
    return %2 : tensor<f32>
  }
  func.func private @twice(%arg0: tensor<f32>) -> tensor<f32> {
    %0 = call @inner(%arg0) : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @inner(%arg0: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<f32>
    return %0 : tensor<f32>
  }
}
"""


def twin(text: str) -> str:
    """The same program, where the second call goes to a copy of the function."""
    start, end = text.index("  func.func private @twice"), text.index("  func.func private @inner")
    copy = text[start:end].replace("@twice", "@twice_7")
    return text[:end].replace("%1 = call @twice(", "%1 = call @twice_7(") + copy + text[end:]


def test_names_and_copies_are_no_difference() -> None:
    assert difference(PROGRAM, PROGRAM) is None
    assert difference(PROGRAM, PROGRAM.replace("@twice", "@twice_3")) is None
    assert difference(PROGRAM, twin(PROGRAM)) is None
    assert difference(twin(PROGRAM), PROGRAM.replace("@inner", "@inner_0")) is None


def test_what_a_function_does_is_a_difference_wherever_it_is_called() -> None:
    for text in (PROGRAM, twin(PROGRAM)):
        changed = text.replace("stablehlo.add", "stablehlo.multiply")
        found = difference(PROGRAM, changed)
        assert found is not None
        assert "stablehlo.add" in found[0] and "stablehlo.multiply" in found[1]


def test_what_is_called_and_how_often_is_a_difference() -> None:
    for before, now in (
        ("@target", "@other"),
        ("n = 1", "n = 2"),
        ("%1 = call @twice", "%1 = call @inner"),
        ("    %0 = stablehlo.add", "    %3 = stablehlo.abs %arg0\n    %0 = stablehlo.add"),
    ):
        assert difference(PROGRAM, PROGRAM.replace(before, now)) is not None
    longer = PROGRAM.replace("    return %2", "    return %2\n    return %2")
    assert difference(PROGRAM, longer) is not None


def test_texts_of_jax_are_understood() -> None:
    def program(value: float, name: str):
        def inner(x):
            return x * value

        inner.__name__ = name
        called, again = jax.jit(inner), jax.jit(lambda x: inner(x))
        return jax.jit(lambda x: called(x) + again(called(x))).lower(jnp.ones(3)).as_text()

    assert difference(program(2.0, "f"), program(2.0, "f")) is None
    found = difference(program(2.0, "f"), program(3.0, "f"))
    assert found is not None and "2.0" in found[0] and "3.0" in found[1]


def test_a_step_is_traced_twice_though_jaxs_caches_are_cleared_between() -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)]).to("jax")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)

    @calque.jit
    def step(x):
        loss = (model(x) * model(x)).sum() * x.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x = torch.ones(2, 4, device="jax")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            step(x)
            jax.clear_caches()
    assert step.compilations == 1
