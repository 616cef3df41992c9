"""Errors show the user's frames only: from the call to the line that is wrong."""

import traceback
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from calque import federated as fed
from calque.errors import ClientError

MISTAKES: dict[str, Callable[[], Any]] = {}


def mistake(function: Callable[[], Any]) -> Callable[[], Any]:
    MISTAKES[function.__name__] = function
    return function


@mistake
def a_wrong_placement() -> None:
    @fed.computation("int32@SERVER")
    def total(x: Any) -> Any:
        return fed.federated_sum(x)  # here


@mistake
def a_wrong_type() -> None:
    @fed.computation("{int32}@CLIENTS")
    def mean(x: Any) -> Any:
        return fed.federated_mean(x)  # here


@mistake
def two_placements() -> None:
    @fed.computation("{int32}@CLIENTS", "int32@SERVER")
    def shifted(x: Any, y: Any) -> Any:
        return x + y  # here


@mistake
def no_return() -> None:
    @fed.computation("int32")  # here
    def nothing(x: Any) -> Any:
        x + 1


@mistake
def a_value_as_a_key() -> None:
    @fed.computation("int32")
    def keyed(x: Any) -> Any:
        return {x: 1}  # here


@mistake
def a_branch() -> None:
    @fed.computation("int32")
    def branch(x: Any) -> Any:
        return x if x > 0 else -x  # here


@mistake
def no_such_field() -> None:
    @fed.computation("{<a=int32>}@CLIENTS")
    def field(x: Any) -> Any:
        return fed.federated_map(lambda v: v.b, x)  # here


@mistake
def an_assertion_in_a_client() -> None:
    @fed.local("float32[3]", framework="jax")
    def checked(x: Any) -> Any:
        assert x.shape == (4,)  # here
        return x


@mistake
def shapes_in_jax() -> None:
    @fed.local("float32[3]", framework="jax")
    def product(x: Any) -> Any:
        return x @ jnp.ones((4, 2))  # here


@mistake
def shapes_in_torch() -> None:
    @fed.local("float32[3]")
    def product(x: Any) -> Any:
        return x @ torch.ones(4, 2)  # here


@mistake
def shapes_in_a_model() -> None:
    model = torch.nn.Linear(4, 2)

    @fed.local("float32[3]")
    def product(x: Any) -> Any:
        return model(x)  # here


@mistake
def writing_to_a_cpu_tensor_in_a_local_function() -> None:
    total = torch.zeros(3)

    @fed.local("float32[3]")
    def added(x: Any) -> Any:
        return total.add_(x)  # here


@mistake
def weights_that_add_up_to_zero() -> None:
    mean = fed.computation("{float32}@CLIENTS", "{float32}@CLIENTS")(fed.federated_mean)
    mean([1.0, 2.0], [0.0, 0.0])  # here


@mistake
def an_error_of_the_users() -> None:
    @fed.computation("int32")
    def divided(x: Any) -> Any:
        return x + 1 // 0  # here


@mistake
def a_wrong_notation() -> None:
    fed.computation("flot32")(lambda x: x)  # here


@mistake
def an_argument_of_another_type() -> None:
    fed.computation("int32")(lambda x: x)(2.5)  # here


@mistake
def an_argument_too_few() -> None:
    fed.computation("int32")(lambda x: x)()  # here


@mistake
def no_number_of_clients() -> None:
    comp = fed.computation(lambda: fed.federated_sum(fed.federated_value(1, fed.CLIENTS)))
    comp()  # here


@mistake
def nan_on_a_client() -> None:
    fed.computation("{float32}@CLIENTS")(fed.federated_sum)([1.0, np.nan])  # here


@mistake
def a_shape_that_only_the_call_says() -> None:
    @fed.local("float32[?]", framework="jax")
    def first_four(x: Any) -> Any:
        return x[:4].reshape(4) if x.shape[0] != 3 else x @ jnp.ones(4)  # here

    first_four(np.zeros(3, np.float32))


@mistake
def an_error_in_a_computation_inside_another() -> None:
    def inner(x: Any) -> Any:
        return fed.federated_sum(x)  # here

    @fed.computation("int32@SERVER")
    def outer(x: Any) -> Any:
        return fed.federated_map(fed.computation("int32@SERVER")(inner), x)


@pytest.mark.parametrize("name", MISTAKES)
def test_no_library_frame_stands_between_the_call_and_the_line(name: str) -> None:
    with pytest.raises(Exception) as caught:
        MISTAKES[name]()
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert {frame.filename for frame in frames} == {__file__}
    assert "# here" in str(frames[-1].line)


def test_the_whole_traceback_is_there_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALQUE_TRACEBACK", "full")
    with pytest.raises(Exception) as caught:
        MISTAKES["a_wrong_type"]()
    files = {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)}
    assert any("calque/federated" in file for file in files)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([np.zeros(2, np.float32), np.zeros(3, np.float32)], r"of client 1 has shape \[3\]"),
        ([1.0, 2.0, "x"], "of client 2 is a value of class str"),
    ],
)
def test_a_client_with_other_data_is_named(value: Any, message: str) -> None:
    kind = "{float32}@CLIENTS" if isinstance(value[-1], str) else "{float32[?]}@CLIENTS"
    with pytest.raises(ClientError, match=message):
        fed.computation(kind)(lambda x: x)(value)


def test_a_mapped_function_with_too_many_parameters_is_refused_with_the_type_of_its_argument() -> (
    None
):
    with pytest.raises(fed.FederatedTypeError, match=r"\(a, b\), but .* of type float32: missing"):
        fed.computation(lambda x: fed.federated_map(lambda a, b: a + b, x), "{float32}@CLIENTS")


def test_missing_data_are_named_in_the_remedy() -> None:
    comp = fed.computation(lambda: fed.federated_sum(fed.data("seen", "{float32}@CLIENTS")))
    with pytest.raises(fed.FederatedTypeError, match=r"configured\(data=\{'seen': \.\.\.\}\)"):
        comp()
    assert float(comp.configured(data={"seen": [1.0, 2.0]})()) == 3.0


def test_arguments_of_different_numbers_of_clients_are_refused() -> None:
    comp = fed.computation(lambda x, y: (x, y), "{int32}@CLIENTS", "{int32}@CLIENTS")
    with pytest.raises(TypeError, match="of 2 and 3 clients"):
        comp([1, 2], [1, 2, 3])


def test_a_jax_function_that_needs_a_value_is_named_with_its_line_and_arguments() -> None:
    def signed(number: Any, other: Any) -> Any:
        if other > 0:  # line 2
            return number
        return -number

    line = signed.__code__.co_firstlineno
    for types in (("float32", "float32"), ("float32[?]", "float32")):
        with pytest.raises(TypeError, match="Attempted boolean conversion") as caught:
            fed.local(*types, framework="jax")(signed)
        text = "\n".join((str(caught.value), *caught.value.__notes__))
        assert f"function signed at {__file__}:{line} " in text
        assert "the value of the argument other" in text
        assert f"{__file__}:{line + 1} in signed: the local function 'signed' needs a value" in text
        assert "jax.lax.cond" in text and "calque" not in text.replace(__file__, "")


def test_too_little_memory_is_pytorchs_error_and_nothing_is_lost() -> None:
    @fed.local("float32[2]", framework="jax")
    def much(x: Any) -> Any:
        return jnp.full((10**13, 2), x)

    @fed.computation("float32[2]@SERVER")
    def repeated(x: Any) -> Any:
        return fed.federated_map(much, x)

    values = jnp.ones(2, jnp.float32)
    for comp in (repeated, repeated.configured(check=False)):
        with pytest.raises(torch.OutOfMemoryError, match=r"test_errors.py:\d+ in test_too_little"):
            comp(values)
    assert values.tolist() == [1.0, 1.0]


def test_a_field_of_a_struct_in_a_local_function_is_a_key() -> None:
    with pytest.raises(AttributeError) as caught:
        fed.local("<a=float32,b=float32>")(lambda struct: struct.a)
    (note,) = caught.value.__notes__
    assert "a struct with names is a dict in a local function: write ['a'] for .a." in note
