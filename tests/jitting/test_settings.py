"""The options of `calque.jit` are the same wherever they are listed."""

import copy
import dataclasses
import inspect
import typing

import pytest

import calque
from calque.jitting.settings import JitOptions, Settings


def test_jit_and_its_types_and_its_settings_list_the_same_options() -> None:
    options = dict(inspect.signature(calque.jit).parameters)
    del options["fn"], options["unknown"]  # the latter raises an error with a reason
    assert {name: one.default for name, one in options.items()} == dataclasses.asdict(Settings())
    types = typing.get_type_hints(calque.jit)
    assert {name: types[name] for name in options} == typing.get_type_hints(JitOptions)


def test_a_copy_of_a_jitted_function_has_its_settings() -> None:
    jitted = calque.jit(max_programs=3, verify=False)(lambda x: x)
    assert copy.deepcopy(jitted)._settings == Settings(max_programs=3, verify=False)


def test_a_wrong_option_is_refused_before_there_is_a_function() -> None:
    with pytest.raises(TypeError, match=r"calque\.jit\(\.\.\., checks=\) must be True or False"):
        calque.jit(checks="yes")  # type: ignore[call-overload]
