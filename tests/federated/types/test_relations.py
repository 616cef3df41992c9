"""Assignability, the least common type, and unification."""

import pytest
from hypothesis import given

from calque.errors import FederatedTypeError
from calque.federated.types import Type, is_assignable, join, parse_type, substitute, unify
from tests.federated.types.test_notation import types

FITS = [
    ("int32", "int32"),
    ("float32[?]", "float32[3]"),
    ("float32[?,2]", "float32[?,2]"),
    ("<int32,float32>", "<a=int32,b=float32>"),
    ("<a=float32[?]>", "<a=float32[2]>"),
    ("float32[?]*", "float32[2]*"),
    ("{int32}@CLIENTS", "int32@CLIENTS"),
    ("{float32[?]}@CLIENTS", "{float32[2]}@CLIENTS"),
    ("(float32[2] -> float32[?])", "(float32[?] -> float32[2])"),
    ("( -> float32[?])", "( -> float32[2])"),
    ("T", "T"),
]
DOES_NOT_FIT = [
    ("int32", "float32"),
    ("float32[3]", "float32[?]"),
    ("float32[3]", "float32[4]"),
    ("float32[3]", "float32[3,1]"),
    ("<a=int32>", "<b=int32>"),
    ("<a=int32>", "<int32>"),
    ("<int32>", "<int32,int32>"),
    ("int32", "<int32>"),
    ("int32*", "int32"),
    ("int32@CLIENTS", "{int32}@CLIENTS"),
    ("int32@CLIENTS", "int32@SERVER"),
    ("int32", "int32@SERVER"),
    ("(float32[?] -> int32)", "(float32[2] -> int32)"),
    ("(int32 -> int32)", "( -> int32)"),
    ("T", "U"),
    ("T", "int32"),
]


@pytest.mark.parametrize(("target", "source"), FITS)
def test_assignable(target: str, source: str) -> None:
    assert is_assignable(parse_type(target), parse_type(source))


@pytest.mark.parametrize(("target", "source"), DOES_NOT_FIT)
def test_not_assignable(target: str, source: str) -> None:
    assert not is_assignable(parse_type(target), parse_type(source))


@given(types)
def test_every_type_is_assignable_to_itself(kind: Type) -> None:
    assert is_assignable(kind, kind)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("float32[2]", "float32[3]", "float32[?]"),
        ("<a=int32>", "<b=int32>", "<int32>"),
        ("float32[2]*", "float32[3]*", "float32[?]*"),
        ("int32@CLIENTS", "{int32}@CLIENTS", "{int32}@CLIENTS"),
        ("(float32[2] -> int32)", "(float32[?] -> int32)", "(float32[2] -> int32)"),
    ],
)
def test_both_types_are_assignable_to_their_join(first: str, second: str, expected: str) -> None:
    joined = join(parse_type(first), parse_type(second))
    assert str(joined) == expected
    assert is_assignable(joined, parse_type(first))
    assert is_assignable(joined, parse_type(second))


@pytest.mark.parametrize(
    ("first", "second"),
    [("int32", "float32"), ("int32@CLIENTS", "int32@SERVER"), ("float32[2]", "float32[2,2]")],
)
def test_types_without_a_join_are_both_shown(first: str, second: str) -> None:
    with pytest.raises(FederatedTypeError) as caught:
        join(parse_type(first), parse_type(second))
    assert f"{first} and {second}" in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "actual", "expected"),
    [
        ("T", "int32", {"T": "int32"}),
        ("<T,T>", "<float32[2],float32[3]>", {"T": "float32[?]"}),
        ("{T}@CLIENTS", "{<a=int32>}@CLIENTS", {"T": "<a=int32>"}),
        ("{T}@CLIENTS", "int32@CLIENTS", {"T": "int32"}),
        (
            "<(T -> U),{T}@CLIENTS>",
            "<(int32 -> bool),{int32}@CLIENTS>",
            {"T": "int32", "U": "bool"},
        ),
        ("<(T -> U),T>", "<(float32[?] -> bool),float32[2]>", {"T": "float32[2]", "U": "bool"}),
        ("(T -> T)", "(int32 -> int32)", {"T": "int32"}),
        ("T*", "int32*", {"T": "int32"}),
        ("<T,(<T,U> -> T)>", "<int32,(<int32,bool> -> int32)>", {"T": "int32", "U": "bool"}),
    ],
)
def test_unification_finds_what_variables_stand_for(
    pattern: str, actual: str, expected: dict[str, str]
) -> None:
    found = unify(parse_type(pattern), parse_type(actual))
    assert {name: str(kind) for name, kind in found.items()} == expected
    assert is_assignable(substitute(parse_type(pattern), found), parse_type(actual))


@pytest.mark.parametrize(
    ("pattern", "actual"),
    [
        ("<(T -> U),{T}@CLIENTS>", "<(int32 -> bool),{float32}@CLIENTS>"),
        ("{T}@CLIENTS", "int32@SERVER"),
        ("T@SERVER", "{int32}@CLIENTS"),
        ("<T,T>", "<int32,float32>"),
        ("<T,(<T,U> -> T)>", "<int32,(<int32,bool> -> float32)>"),
        ("(T -> T)", "(int32 -> bool)"),
    ],
)
def test_what_cannot_be_unified_is_refused(pattern: str, actual: str) -> None:
    with pytest.raises(FederatedTypeError):
        unify(parse_type(pattern), parse_type(actual))


@given(types)
def test_a_variable_stands_for_any_type(kind: Type) -> None:
    assert unify(parse_type("T"), kind) == {"T": kind}
