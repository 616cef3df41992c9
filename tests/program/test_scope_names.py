"""Name scopes of equations that stand for several."""

from typing import Any

import jax

from calque.program import scope_names


def equations(*scopes: str) -> list[Any]:
    def run(x: Any) -> Any:
        for scope in scopes:
            with jax.named_scope(scope.split("/")[0]), jax.named_scope(scope.split("/")[1]):
                x = x + 1.0
        return x

    return jax.make_jaxpr(run)(1.0).jaxpr.eqns


def stacks(*scopes: str) -> list[Any]:
    return [equation.source_info.name_stack for equation in equations(*scopes)]


def test_what_all_equations_are_within_is_shared() -> None:
    assert str(scope_names.shared(equations("a/b", "a/b"))) == "a/b"
    assert str(scope_names.shared(equations("a/b", "a/c"))) == "a"
    assert str(scope_names.shared(equations("a/b", "c/b"))) == ""


def test_numbers_that_differ_are_left_open() -> None:
    assert str(scope_names.merged(stacks("a.0/linear", "a.1/linear"))) == "a.*/linear"
    assert str(scope_names.merged(stacks("a.1/linear", "a.1/linear"))) == "a.1/linear"


def test_different_names_are_left_out_with_what_is_within() -> None:
    assert str(scope_names.merged(stacks("a/first", "a/second"))) == "a"
    assert str(scope_names.merged(stacks("first/a", "second/a"))) == ""
