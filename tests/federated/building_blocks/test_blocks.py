"""Building blocks are typed when they are made, and refuse what does not fit."""

import dataclasses

import numpy as np
import pytest

from calque.errors import FederatedTypeError, InternalError
from calque.federated import building_blocks as bb
from calque.federated.types import CLIENTS, FunctionType, parse_type


def ref(name: str, text: str) -> bb.Reference:
    return bb.Reference(name, parse_type(text))


def intrinsic(uri: str, text: str) -> bb.Intrinsic:
    return bb.Intrinsic(uri, parse_type(text))  # type: ignore[arg-type]


def literal(value: object) -> bb.Literal:
    return bb.Literal(np.asarray(value, np.int32))


X = ref("x", "<a=int32,b=<float32,bool>>")
F = ref("f", "(int32 -> bool)")
COMPUTED = bb.CompiledComputation("add", len, parse_type("(<int32,int32> -> int32)"))  # type: ignore[arg-type]

SPELLED = {
    "x": (X, "<a=int32,b=<float32,bool>>"),
    "x.a": (bb.Selection(X, "a"), "int32"),
    "x.b[1]": (bb.Selection(bb.Selection(X, 1), 1), "bool"),
    "x.'0.w'": (bb.Selection(ref("x", "<'0.w'=int32>"), "0.w"), "int32"),
    "<a=1,x>": (bb.Struct((("a", literal(1)), (None, X))), f"<a=int32,{X.type}>"),
    "<>": (bb.Struct(()), "<>"),
    "f(1)": (bb.Call(F, literal(1)), "bool"),
    "g()": (bb.Call(ref("g", "( -> int32)")), "int32"),
    "(y -> y)": (bb.Lambda("y", X.type, ref("y", str(X.type))), f"({X.type} -> {X.type})"),
    "( -> 1)": (bb.Lambda(None, None, literal(1)), "( -> int32)"),
    "(let y=1,z=y in z)": (
        bb.Block((("y", literal(1)), ("z", ref("y", "int32"))), ref("z", "int32")),
        "int32",
    ),
    "[1,2]": (literal([1, 2]), "int32[2]"),
    "int32[3,4]{...}": (literal(np.zeros((3, 4))), "int32[3,4]"),
    "CLIENTS": (bb.Placement(CLIENTS), "placement"),
    "shard": (bb.Data("shard", parse_type("{int32*}@CLIENTS")), "{int32*}@CLIENTS"),
    "comp#add": (COMPUTED, "(<int32,int32> -> int32)"),
    "comp#add(<1,2>)": (
        bb.Call(COMPUTED, bb.Struct(((None, literal(1)), (None, literal(2))))),
        "int32",
    ),
    "federated_sum": (
        intrinsic("federated_sum", "({int32}@CLIENTS -> int32@SERVER)"),
        "({int32}@CLIENTS -> int32@SERVER)",
    ),
}


@pytest.mark.parametrize("text", SPELLED)
def test_a_block_prints_and_has_its_type(text: str) -> None:
    block, kind = SPELLED[text]
    assert str(block) == text
    assert str(block.type) == kind


@pytest.mark.parametrize("text", SPELLED)
def test_a_block_made_of_its_own_children_is_equal_to_it(text: str) -> None:
    block, _ = SPELLED[text]
    again = block.with_children(block.children())
    assert again == block
    assert hash(again) == hash(block)
    assert bb.same(again, block)


@pytest.mark.parametrize("text", SPELLED)
def test_blocks_cannot_be_changed(text: str) -> None:
    block, _ = SPELLED[text]
    with pytest.raises(dataclasses.FrozenInstanceError):
        block.type = None  # type: ignore[assignment]


def test_a_literal_keeps_a_copy() -> None:
    value = np.ones(2, np.float32)
    block = bb.Literal(value)
    value[0] = 5
    assert block.value.tolist() == [1, 1]
    with pytest.raises(ValueError, match="read-only"):
        block.value[0] = 2


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: bb.Selection(X, "c"), ["no field 'c'", "'a', 'b'"]),
        (lambda: bb.Selection(F, 0), ["selected from (int32 -> bool)"]),
        (lambda: bb.Call(X, literal(1)), [f"{X.type} is not a function"]),
        (lambda: bb.Call(F, bb.Literal(np.float32(1))), ["takes int32", "with float32"]),
        (lambda: bb.Call(F), ["takes int32", "with no argument"]),
        (lambda: bb.Call(ref("g", "( -> int32)"), literal(1)), ["takes no argument", "int32"]),
        (lambda: intrinsic("federated_prod", "(int32 -> int32)"), ["no intrinsic"]),
        (lambda: intrinsic("federated_sum", "(int32@SERVER -> int32@SERVER)"), ["does not fit"]),
        (lambda: intrinsic("federated_sum", "({int32}@CLIENTS -> int32)"), ["cannot be of type"]),
        (
            lambda: intrinsic("federated_zip", "(<{int32}@CLIENTS,int32@SERVER> -> int32@SERVER)"),
            ["cannot be of type"],
        ),
        (lambda: bb.Lambda("x", None, literal(1)), ["both a name and a type"]),
        (lambda: bb.Struct((("a", literal(1)), ("a", literal(2)))), ["two fields"]),
    ],
)
def test_what_does_not_fit_is_refused_with_both_types(make: object, shown: list[str]) -> None:
    with pytest.raises(FederatedTypeError) as caught:
        make()  # type: ignore[operator]
    for part in [*shown, "test_blocks.py"]:
        assert part in str(caught.value)


def test_a_selection_by_name_and_by_index_are_one() -> None:
    assert bb.Selection(X, 0) == bb.Selection(X, "a")
    assert bb.Selection(X, -1) == bb.Selection(X, "b")


def test_an_intrinsic_may_be_of_any_type_that_its_pattern_has() -> None:
    intrinsic("federated_map", "(<(int32 -> bool),int32@CLIENTS> -> {bool}@CLIENTS)")
    kind = "(<a={int32}@CLIENTS,b=bool@CLIENTS> -> {<a=int32,b=bool>}@CLIENTS)"
    assert str(intrinsic("federated_zip", kind).type) == kind


def test_zipped_structs_are_all_equal_only_if_all_parts_are() -> None:
    both = bb.zip_result(parse_type("<a=int32@CLIENTS,<bool@CLIENTS>>"))
    assert str(both) == "<a=int32,<bool>>@CLIENTS"
    assert str(bb.zip_result(parse_type("<{int32}@CLIENTS>"))) == "{<int32>}@CLIENTS"
    assert bb.zip_result(parse_type("<int32,{int32}@CLIENTS>")) is None
    assert bb.zip_result(parse_type("<>")) is None


def test_formatted_text_breaks_lines_where_one_is_too_long() -> None:
    long = bb.Struct(tuple((f"element_number_{i}", literal(i)) for i in range(5)))
    assert bb.formatted(bb.Lambda("y", X.type, long)) == (
        "(y ->\n"
        "  <\n"
        "    element_number_0=0,\n"
        "    element_number_1=1,\n"
        "    element_number_2=2,\n"
        "    element_number_3=3,\n"
        "    element_number_4=4\n"
        "  >\n"
        ")"
    )


def test_structural_text_shows_every_part_with_its_type() -> None:
    block = bb.Block((("y", bb.Call(F, bb.Selection(X, "a"))),), ref("y", "bool"))
    assert bb.structural(block) == (
        "Block: bool\n"
        "  y =\n"
        "    Call: bool\n"
        "      Reference f: (int32 -> bool)\n"
        "      Selection .a: int32\n"
        "        Reference x: <a=int32,b=<float32,bool>>\n"
        "  in\n"
        "    Reference y: bool"
    )


def lam(name: str, body: bb.BuildingBlock) -> bb.Lambda:
    return bb.Lambda(name, parse_type("int32"), body)


def test_the_same_up_to_names() -> None:
    first = lam("x", lam("y", ref("x", "int32")))
    assert bb.same(first, lam("y", lam("x", ref("y", "int32"))))
    assert not bb.same(first, lam("x", lam("y", ref("y", "int32"))))
    assert not bb.same(lam("x", ref("free", "int32")), lam("x", ref("other", "int32")))
    assert not bb.same(lam("x", ref("y", "int32")), lam("y", ref("y", "int32")))


def test_blocks_are_the_same_up_to_the_names_of_locals() -> None:
    def block(name: str) -> bb.Block:
        return bb.Block(((name, literal(1)),), ref(name, "int32"))

    assert block("a") != block("b")
    assert bb.same(block("a"), block("b"))
    assert not bb.same(block("a"), bb.Block((("a", literal(2)),), ref("a", "int32")))


def test_structs_with_other_names_are_not_the_same() -> None:
    a, b = (bb.Struct(((name, literal(1)),)) for name in "ab")
    assert not bb.same(a, b)


def test_free_references_are_those_that_nothing_binds() -> None:
    inner = bb.Block(
        (("y", ref("x", "int32")), ("z", ref("w", "bool"))),
        bb.Struct(((None, ref("y", "int32")), (None, ref("v", "int8")))),
    )
    assert list(bb.free_references(lam("x", inner))) == ["w", "v"]
    assert list(bb.free_references(bb.Block((("x", ref("x", "int32")),), ref("x", "int32")))) == [
        "x"
    ]


def test_the_verifier_finds_names_that_nothing_binds_and_wrong_types() -> None:
    bb.verify(lam("x", ref("x", "int32")))
    with pytest.raises(InternalError, match="the name 'y' of type"):
        bb.verify(lam("x", ref("y", "int32")))
    with pytest.raises(InternalError, match="'x' has type int32, but is used as bool"):
        bb.verify(lam("x", ref("x", "bool")))


def test_a_function_type_is_what_a_lambda_has() -> None:
    assert isinstance(lam("x", literal(1)).type, FunctionType)
