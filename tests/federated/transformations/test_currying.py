"""A function that gives a function is the same as one of both arguments."""

import pytest

from calque.errors import InternalError
from calque.federated import building_blocks as bb
from calque.federated import to_type
from calque.federated.building_blocks import free_references, same, verify
from calque.federated.transformations import RULES, transform, uncurry
from calque.federated.transformations.currying import is_uncurried

INT, REAL = to_type("int32"), to_type("float32")


def ref(name: str, kind: object = INT) -> bb.Reference:
    return bb.Reference(name, kind)  # type: ignore[arg-type]


def struct(*blocks: bb.BuildingBlock) -> bb.Struct:
    return bb.Struct(tuple((None, block) for block in blocks))


CURRIED = {
    "plain": bb.Lambda("x", INT, bb.Lambda("y", REAL, struct(ref("x"), ref("y", REAL)))),
    "the same name twice": bb.Lambda("x", INT, bb.Lambda("x", REAL, struct(ref("x", REAL)))),
    "a name that is taken": bb.Lambda("x", INT, bb.Lambda("y", REAL, struct(ref("x_y"), ref("x")))),
}
CURRIED["names in between"] = bb.Lambda(
    "x",
    INT,
    bb.Block(
        (("a", struct(ref("x"))),),
        bb.Lambda("y", REAL, struct(ref("y", REAL), ref("a", to_type("<int32>")))),
    ),
)


@pytest.mark.parametrize("name", CURRIED)
def test_a_call_with_both_is_a_call_of_a_call(name: str) -> None:
    curried = CURRIED[name]
    whole = uncurry(curried)
    verify(whole, free_references(curried))
    first, second = ref("first"), ref("second", REAL)
    apart = bb.Call(bb.Call(curried, first), second)
    together = bb.Call(whole, struct(first, second))
    assert same(transform(apart), transform(together))
    assert same(transform(curried, "uncurry"), whole)


def test_three_functions_become_one() -> None:
    body = struct(ref("x"), ref("y"), ref("z"))
    curried = bb.Lambda("x", INT, bb.Lambda("y", INT, bb.Lambda("z", INT, body)))
    assert str(uncurry(curried).type) == "(<int32,<int32,int32>> -> <int32,int32,int32>)"


@pytest.mark.parametrize(
    "block", [ref("x"), bb.Lambda("x", INT, ref("x")), bb.Lambda(None, None, ref("x"))]
)
def test_anything_else_stays(block: bb.BuildingBlock) -> None:
    assert uncurry(block) is block


@pytest.mark.parametrize(
    "after",
    [
        "(<int32,float32> -> int32)",
        "(<float32,int32> -> bool)",
        "(<int32> -> bool)",
        "(int32 -> bool)",
        "bool",
    ],
)
def test_a_rule_that_uncurries_to_another_type_is_a_fault(
    after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_uncurried(to_type("(int32 -> (float32 -> bool))"), to_type(after))
    wrong = bb.Lambda("x", to_type("bool"), ref("x", to_type("bool")))
    monkeypatch.setitem(RULES, "uncurry", lambda block: wrong)
    with pytest.raises(InternalError, match="'uncurry' changed"):
        transform(CURRIED["plain"], "uncurry")
